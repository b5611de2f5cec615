/*
 * Reads an image like a tracer: from the file, by its section headers, without
 * trusting its contents.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef READER_H
#define READER_H

#include <elf.h>
#include <stdint.h>
#include <sys/types.h>

#include "libstapsdt.h"

struct read_operand {
  uint8_t role;
  uint8_t type;
  char name[SDT_MAX_NAME + 1];
};

struct read_probe {
  uint64_t address, base, semaphore;
  const char *provider, *name, *arguments;
  /* From the rbtrace note for the same address. */
  int described;
  uint16_t version;
  uint8_t role, count;
  struct read_operand operands[SDT_MAX_OPERANDS];
};

struct reader {
  unsigned char *bytes;
  size_t size;
  struct read_probe *probes;
  size_t count;
  size_t rbtrace_notes;
};

/* Each returns 0, or -1 after printing the error to stdout. */
int reader_init_bytes(struct reader *reader, const void *bytes, size_t size);
int reader_init_path(struct reader *reader, const char *path);
void reader_deinit(struct reader *reader);

const Elf64_Ehdr *reader_ehdr(const struct reader *reader);
const Elf64_Shdr *reader_section(const struct reader *reader, const char *name);
/* Return its index among the section headers, or -1 if it is missing. */
int reader_section_index(const struct reader *reader, const char *name);
const struct read_probe *reader_find(const struct reader *reader,
                                     const char *provider, const char *name);

/* Store the paths /proc/PID/fd/N of a process's images, oldest first; return how
 * many there are. */
#define MAX_IMAGES 2048
size_t reader_images(pid_t pid, char ret[MAX_IMAGES][64]);
/* Count a probe in all images of a process; return -1 on failure. */
int reader_count(pid_t pid, const char *provider, const char *name);
/* Return the number of open descriptors of a process. */
size_t reader_descriptors(pid_t pid);

#endif /* READER_H */
