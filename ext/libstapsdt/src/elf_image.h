/*
 * The ELF file of an image. This file uses neither processes nor files, so an
 * image for one machine can be created and read on another.
 *
 * Layout of the file; offsets equal addresses:
 *
 *   page 0        ELF and program headers, build-id, .dynsym, .hash, .dynstr
 *   text          all sites that the image can hold
 *   data          .dynamic, .probes
 *   tables        section headers and their names \
 *   stapsdt       the stapsdt notes                | mapped shared, writable
 *   rbtrace       the rbtrace notes               /
 *
 * Everything from `tables` on lies outside the loaded segments. bcc and
 * bpftrace look up the sections in this order.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef SDT_ELF_IMAGE_H
#define SDT_ELF_IMAGE_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

#define SDT_SITE_SIZE 8
#define SDT_BUILD_ID_SIZE 20

/* Average room for the notes of a probe. The size of a single probe's notes is
 * checked against the whole area. */
#define SDT_STAPSDT_ROOM 160
#define SDT_RBTRACE_ROOM 192
/* Minimum number of sites: the areas then have room for the largest notes. */
#define SDT_MIN_SITES 16

enum sdt_section {
  SDT_SECTION_NULL,
  SDT_SECTION_BUILD_ID,
  SDT_SECTION_DYNSYM,
  SDT_SECTION_HASH,
  SDT_SECTION_DYNSTR,
  SDT_SECTION_BASE,
  SDT_SECTION_TEXT,
  SDT_SECTION_DYNAMIC,
  SDT_SECTION_PROBES,
  SDT_SECTION_STAPSDT,
  SDT_SECTION_RBTRACE,
  SDT_SECTION_SHSTRTAB,
  SDT_SECTION_COUNT
};

struct sdt_elf {
  uint16_t machine; /* EM_X86_64 or EM_AARCH64 */
  size_t sites;
  size_t base; /* address of .stapsdt.base */
  size_t build_id;
  size_t text;
  size_t text_end;
  size_t data;
  size_t tables; /* the file's writable mapping begins here as well */
  size_t stapsdt;
  size_t stapsdt_room;
  size_t rbtrace;
  size_t rbtrace_room;
  size_t size;
};

/* Return the machine this library was compiled for; EM_NONE if unsupported. */
uint16_t sdt_elf_native(void);

/*
 * Lay out an image.
 *
 * page: the system's page size
 * sites: minimum number; rounded up to fill whole pages
 *
 * Returns 0, or -1 if the machine is unknown.
 */
int sdt_elf_init(struct sdt_elf *elf, uint16_t machine, size_t page,
                 size_t sites);

/* Return the number of bytes that sdt_elf_emit writes: all but the notes. */
static inline size_t sdt_elf_head(const struct sdt_elf *elf) {
  return elf->stapsdt;
}

/* Write the beginning of the file to `ret`, which must be zeroed. */
void sdt_elf_emit(const struct sdt_elf *elf,
                  const uint8_t build_id[SDT_BUILD_ID_SIZE],
                  unsigned char *ret);

/* Return the file offset of the size field of a section. */
size_t sdt_elf_size_field(const struct sdt_elf *elf, enum sdt_section section);

static inline size_t sdt_elf_site(const struct sdt_elf *elf, size_t index) {
  return elf->text + index * SDT_SITE_SIZE;
}

#endif /* SDT_ELF_IMAGE_H */
