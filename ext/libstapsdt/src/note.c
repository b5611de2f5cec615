/* SPDX-License-Identifier: MIT */
#include "note.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

#define NAME_SIZE 8 /* of "stapsdt" and "rbtrace", with the NUL */

struct stapsdt_head {
  Elf64_Nhdr header;
  char name[NAME_SIZE];
  uint32_t address[2]; /* 64-bit numbers in notes are only 4-byte aligned */
  uint32_t base[2];
  uint32_t semaphore[2];
};

struct rbtrace_head {
  Elf64_Nhdr header;
  char name[NAME_SIZE];
  uint32_t address[2];
  uint16_t version;
  uint8_t role;
  uint8_t count;
};

_Static_assert(sizeof(struct stapsdt_head) == 44, "as every reader has it");
_Static_assert(sizeof(struct rbtrace_head) == 32, "as docs/probes.md has it");

static const char *const x86_64_registers[6][4] = {
    {"dil", "di", "edi", "rdi"},  {"sil", "si", "esi", "rsi"},
    {"dl", "dx", "edx", "rdx"},   {"cl", "cx", "ecx", "rcx"},
    {"r8b", "r8w", "r8d", "r8"},  {"r9b", "r9w", "r9d", "r9"},
};

static int size_index(int width) {
  switch (width) {
  case 1:
  case -1:
    return 0;
  case 2:
  case -2:
    return 1;
  case 4:
  case -4:
    return 2;
  case 8:
  case -8:
    return 3;
  default:
    return -1;
  }
}

/* The C calling convention puts operands in these places on entry. */
static void format_place(char *place, size_t size, uint16_t machine,
                         size_t index, int size_index) {
  if (machine == EM_X86_64) {
    if (index < 6)
      snprintf(place, size, "%%%s", x86_64_registers[index][size_index]);
    else
      /* The return address is at the top of the stack. */
      snprintf(place, size, "%zu(%%rsp)", 8 + 8 * (index - 6));
  } else if (index < 8) {
    snprintf(place, size, "x%zu", index);
  } else if (index == 8) {
    snprintf(place, size, "[sp]");
  } else {
    snprintf(place, size, "[sp, %zu]", 8 * (index - 8));
  }
}

int sdt_append_argument(char arguments[SDT_ARGUMENTS_SIZE], uint16_t machine,
                        size_t index, int width) {
  int size = size_index(width);
  if (size < 0 || index >= SDT_MAX_OPERANDS)
    return -1;

  char place[16];
  format_place(place, sizeof(place), machine, index, size);
  size_t used = strlen(arguments);
  int written = snprintf(arguments + used, SDT_ARGUMENTS_SIZE - used,
                         "%s%d@%s", used ? " " : "", width, place);
  if (written < 0 || (size_t)written >= SDT_ARGUMENTS_SIZE - used) {
    arguments[used] = 0;
    return -1;
  }
  return 0;
}

static size_t padded(size_t size) { return (size + 3) & ~(size_t)3; }

static size_t stapsdt_strings(const struct sdt_description *description) {
  return strlen(description->provider) + 1 + strlen(description->name) + 1 +
         strlen(description->arguments) + 1;
}

size_t sdt_stapsdt_note_size(const struct sdt_description *description) {
  return padded(sizeof(struct stapsdt_head) + stapsdt_strings(description));
}

static char *append_string(char *at, const char *text) {
  size_t size = strlen(text) + 1;
  memcpy(at, text, size);
  return at + size;
}

void sdt_stapsdt_note_write(const struct sdt_description *description,
                            uint64_t address, uint64_t base, void *ret) {
  struct stapsdt_head head = {
      .header =
          {
              .n_namesz = NAME_SIZE,
              .n_descsz = 24 + (uint32_t)stapsdt_strings(description),
              .n_type = 3,
          },
      .name = "stapsdt",
  };

  memcpy(head.address, &address, sizeof(address));
  memcpy(head.base, &base, sizeof(base));
  memcpy(ret, &head, sizeof(head));
  char *at = (char *)ret + sizeof(head);
  at = append_string(at, description->provider);
  at = append_string(at, description->name);
  append_string(at, description->arguments);
}

static size_t operand_name_length(const sdt_operand *operand) {
  return operand->name ? strlen(operand->name) : 0;
}

static size_t rbtrace_size(const struct sdt_description *description) {
  size_t size = sizeof(struct rbtrace_head);
  for (size_t i = 0; i < description->count; i++)
    size += 3 + operand_name_length(&description->operands[i]);
  if (description->method)
    size += 3 + strlen(description->method);
  return size;
}

size_t sdt_rbtrace_note_size(const struct sdt_description *description) {
  return description->rbtrace ? padded(rbtrace_size(description)) : 0;
}

static unsigned char *append_entry(unsigned char *at, int role, int type,
                                   const char *name) {
  size_t length = name ? strlen(name) : 0;
  at[0] = (unsigned char)(2 + length);
  at[1] = (unsigned char)role;
  at[2] = (unsigned char)type;
  if (length)
    memcpy(at + 3, name, length);
  return at + 3 + length;
}

void sdt_rbtrace_note_write(const struct sdt_description *description,
                            uint64_t address, void *ret) {
  struct rbtrace_head head = {
      .header =
          {
              .n_namesz = NAME_SIZE,
              .n_descsz = (uint32_t)(rbtrace_size(description) -
                                     sizeof(Elf64_Nhdr) - NAME_SIZE),
              .n_type = 1,
          },
      .name = "rbtrace",
      .version = SDT_RBTRACE_VERSION,
      .role = (uint8_t)description->role,
      .count = (uint8_t)description->count,
  };

  memcpy(head.address, &address, sizeof(address));
  memcpy(ret, &head, sizeof(head));
  unsigned char *at = (unsigned char *)ret + sizeof(head);
  for (size_t i = 0; i < description->count; i++) {
    const sdt_operand *operand = &description->operands[i];
    at = append_entry(at, operand->role, operand->type, operand->name);
  }
  /* Not counted: readers that do not know this entry stop before it. */
  if (description->method)
    append_entry(at, SDT_METHOD, SDT_STRING, description->method);
}

unsigned char *sdt_rbtrace_note_type(void *note, size_t index) {
  unsigned char *at = (unsigned char *)note + sizeof(struct rbtrace_head);
  for (; index > 0; index--)
    at += 1 + at[0];
  return at + 2;
}
