/* Private, zeroed memory of the hook; pages are allocated on first use. */
#ifndef TRACEPOINT_HOOK_MEMORY_H
#define TRACEPOINT_HOOK_MEMORY_H

#include <stddef.h>
#include <sys/mman.h>

/* Return NULL if the memory cannot be mapped. */
static inline void *map_private(size_t size) {
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

#endif
