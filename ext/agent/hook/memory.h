/* Memory of the hook's own: zero, and taken page by page as it is used. */
#ifndef TRACEPOINT_HOOK_MEMORY_H
#define TRACEPOINT_HOOK_MEMORY_H

#include <stddef.h>
#include <sys/mman.h>

/* NULL for want of it. */
static inline void *map_private(size_t size) {
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

#endif
