/*
 * The two notes of a probe (docs/probes.md), and its operands as a string.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef SDT_NOTE_H
#define SDT_NOTE_H

#include <stddef.h>
#include <stdint.h>

#include "common.h"

/* An operand takes at most "-8@56(%rsp) " or "-8@[sp, 24] ". */
#define SDT_ARGUMENTS_SIZE (SDT_MAX_OPERANDS * 16)
#define SDT_RBTRACE_VERSION 1

/* A probe's description, from which its notes are written. */
struct sdt_description {
  const char *provider;
  const char *name;
  char arguments[SDT_ARGUMENTS_SIZE];
  /* Probes of the original interface have no rbtrace note. */
  int rbtrace;
  sdt_probe_role role;
  const sdt_operand *operands;
  size_t count;
  const char *method; /* NULL: none */
};

/*
 * Append operand `index` to `arguments`.
 *
 * width: 1, 2, 4, or 8 bytes; negative if signed
 *
 * Returns 0, or -1 if this machine has no such operand.
 */
int sdt_append_argument(char arguments[SDT_ARGUMENTS_SIZE], uint16_t machine,
                        size_t index, int width);

/* Sizes include the padding after a note. */
size_t sdt_stapsdt_note_size(const struct sdt_description *description);
void sdt_stapsdt_note_write(const struct sdt_description *description,
                            uint64_t address, uint64_t base, void *ret);
size_t sdt_rbtrace_note_size(const struct sdt_description *description);
void sdt_rbtrace_note_write(const struct sdt_description *description,
                            uint64_t address, void *ret);
/* Return the address of the type of operand `index` in a written note. */
unsigned char *sdt_rbtrace_note_type(void *note, size_t index);

#endif /* SDT_NOTE_H */
