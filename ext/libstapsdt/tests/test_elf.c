/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <stdlib.h>

#include "elf_image.h"
#include "harness.h"
#include "note.h"
#include "reader.h"

struct emitted {
  struct sdt_elf elf;
  unsigned char *bytes;
  struct reader reader;
};

static const uint8_t build_id[SDT_BUILD_ID_SIZE] = {1, 2,  3,  4,  5,  6, 7,
                                                    8, 9,  10, 11, 12, 13, 14,
                                                    15, 16, 17, 18, 19, 20};

static int emitted_init(struct emitted *emitted, uint16_t machine, size_t page,
                        size_t sites) {
  memset(emitted, 0, sizeof(*emitted));
  if (sdt_elf_init(&emitted->elf, machine, page, sites) != 0)
    return -1;
  emitted->bytes = calloc(1, emitted->elf.size);
  if (!emitted->bytes)
    return -1;
  sdt_elf_emit(&emitted->elf, build_id, emitted->bytes);
  return reader_init_bytes(&emitted->reader, emitted->bytes,
                           emitted->elf.size);
}

static void emitted_deinit(struct emitted *emitted) {
  reader_deinit(&emitted->reader);
  free(emitted->bytes);
}

static void check_segments(const struct emitted *emitted, size_t page) {
  const Elf64_Ehdr *ehdr = reader_ehdr(&emitted->reader);
  const Elf64_Phdr *phdr = (const void *)(emitted->reader.bytes +
                                          ehdr->e_phoff);
  int executable = 0, writable = 0, stack = 0;
  for (int i = 0; i < ehdr->e_phnum; i++) {
    CHECK_EQ(phdr[i].p_vaddr, phdr[i].p_offset);
    CHECK(phdr[i].p_offset + phdr[i].p_filesz <= emitted->elf.stapsdt);
    CHECK_EQ(phdr[i].p_filesz, phdr[i].p_memsz);
    stack += phdr[i].p_type == PT_GNU_STACK && !(phdr[i].p_flags & PF_X);
    if (phdr[i].p_type != PT_LOAD)
      continue;
    CHECK_EQ(phdr[i].p_align, page);
    CHECK_EQ(phdr[i].p_offset % page, 0);
    CHECK((phdr[i].p_flags & (PF_W | PF_X)) != (PF_W | PF_X));
    executable += (phdr[i].p_flags & PF_X) != 0;
    writable += (phdr[i].p_flags & PF_W) && phdr[i].p_offset >= page;
  }
  CHECK_EQ(executable, 1);
  CHECK_EQ(writable, 1);
  CHECK_EQ(stack, 1);
}

static void check_sections(const struct emitted *emitted, size_t page) {
  const struct reader *reader = &emitted->reader;
  int text = reader_section_index(reader, ".text");
  int probes = reader_section_index(reader, ".probes");
  int stapsdt = reader_section_index(reader, ".note.stapsdt");
  int rbtrace = reader_section_index(reader, ".note.rbtrace");
  CHECK(0 < text && text < probes && probes < stapsdt && stapsdt < rbtrace);
  CHECK(reader_ehdr(reader)->e_shoff >= page);
  CHECK_EQ(reader_ehdr(reader)->e_shoff % page, 0);
  CHECK_EQ(reader_section(reader, ".note.stapsdt")->sh_size, 0);
  CHECK_EQ(reader_section(reader, ".note.rbtrace")->sh_size, 0);
  CHECK_EQ(reader_section(reader, ".note.stapsdt")->sh_offset % page, 0);
  CHECK(reader_section(reader, ".stapsdt.base")->sh_addr ==
        reader_section(reader, ".stapsdt.base")->sh_offset);
  CHECK_EQ(reader_section(reader, ".stapsdt.base")->sh_addr,
           emitted->elf.base);
}

static void check_build_id(const struct emitted *emitted) {
  const Elf64_Shdr *shdr =
      reader_section(&emitted->reader, ".note.gnu.build-id");
  CHECK(shdr && shdr->sh_size == 36);
  const unsigned char *note = emitted->reader.bytes + shdr->sh_offset;
  CHECK(memcmp(note, "\4\0\0\0\24\0\0\0\3\0\0\0GNU", 16) == 0);
  CHECK(memcmp(note + 16, build_id, sizeof(build_id)) == 0);
}

static void check_sites(const struct emitted *emitted,
                        const unsigned char *site) {
  const Elf64_Shdr *text = reader_section(&emitted->reader, ".text");
  CHECK_EQ(text->sh_size, emitted->elf.sites * SDT_SITE_SIZE);
  for (size_t i = 0; i < emitted->elf.sites; i++) {
    CHECK_EQ(sdt_elf_site(&emitted->elf, i), text->sh_addr + 8 * i);
    CHECK(memcmp(emitted->reader.bytes + sdt_elf_site(&emitted->elf, i), site,
                 SDT_SITE_SIZE) == 0);
  }
}

static void check_symbols(const struct emitted *emitted) {
  const struct reader *reader = &emitted->reader;
  const Elf64_Shdr *dynsym = reader_section(reader, ".dynsym");
  const Elf64_Sym *symbols = (const void *)(reader->bytes + dynsym->sh_offset);
  const char *names = (const char *)reader->bytes +
                      reader_section(reader, ".dynstr")->sh_offset;
  CHECK_EQ(dynsym->sh_size, 3 * sizeof(Elf64_Sym));
  CHECK_EQ(dynsym->sh_info, 2);
  CHECK_EQ(ELF64_ST_TYPE(symbols[1].st_info), STT_SECTION);
  CHECK_STR(names + symbols[2].st_name, "sdt_sites");
  CHECK_EQ(symbols[2].st_value, emitted->elf.text);
  CHECK_EQ(symbols[2].st_size, emitted->elf.sites * SDT_SITE_SIZE);
  CHECK_EQ(symbols[2].st_shndx, reader_section_index(reader, ".text"));
}

static void check_dynamic(const struct emitted *emitted) {
  const struct reader *reader = &emitted->reader;
  const Elf64_Shdr *shdr = reader_section(reader, ".dynamic");
  const Elf64_Dyn *entry = (const void *)(reader->bytes + shdr->sh_offset);
  unsigned seen = 0;
  for (; entry->d_tag != DT_NULL; entry++, seen++) {
    const char *section = entry->d_tag == DT_HASH     ? ".hash"
                          : entry->d_tag == DT_STRTAB ? ".dynstr"
                          : entry->d_tag == DT_SYMTAB ? ".dynsym"
                                                      : NULL;
    if (section)
      CHECK_EQ(entry->d_un.d_ptr, reader_section(reader, section)->sh_addr);
  }
  CHECK_EQ(seen, 5);
}

static void check_image(uint16_t machine, size_t page,
                        const unsigned char *site) {
  struct emitted emitted;
  CHECK_EQ(emitted_init(&emitted, machine, page, 1000), 0);
  CHECK_EQ(reader_ehdr(&emitted.reader)->e_machine, machine);
  CHECK_EQ(reader_ehdr(&emitted.reader)->e_type, ET_DYN);
  CHECK(emitted.elf.sites >= 1000);
  CHECK_HELPER(check_segments(&emitted, page));
  CHECK_HELPER(check_sections(&emitted, page));
  CHECK_HELPER(check_build_id(&emitted));
  CHECK_HELPER(check_sites(&emitted, site));
  CHECK_HELPER(check_symbols(&emitted));
  CHECK_HELPER(check_dynamic(&emitted));
  CHECK_EQ(emitted.reader.count, 0);
  emitted_deinit(&emitted);
}

static void x86_64(void) {
  check_image(EM_X86_64, 4096,
              (const unsigned char *)"\x90\xc3\xcc\xcc\xcc\xcc\xcc\xcc");
}

static void aarch64(void) {
  const unsigned char *site =
      (const unsigned char *)"\x1f\x20\x03\xd5\xc0\x03\x5f\xd6";
  CHECK_HELPER(check_image(EM_AARCH64, 4096, site));
  CHECK_HELPER(check_image(EM_AARCH64, 65536, site));
}

static void other_machines(void) {
  struct sdt_elf elf;
  CHECK_EQ(sdt_elf_init(&elf, EM_NONE, 4096, 1), -1);
  CHECK_EQ(sdt_elf_init(&elf, EM_RISCV, 4096, 1), -1);
}

static void aarch64_probe(void) {
  struct emitted emitted;
  CHECK_EQ(emitted_init(&emitted, EM_AARCH64, 65536, 1), 0);
  struct sdt_elf *elf = &emitted.elf;
  struct sdt_description description = {.provider = "shop", .name = "sold",
                                        .rbtrace = 1, .count = 12};
  sdt_operand operands[12];
  for (size_t i = 0; i < 12; i++) {
    operands[i] = (sdt_operand){"x", SDT_SYMBOL, SDT_ARGUMENT};
    CHECK_EQ(sdt_append_argument(description.arguments, EM_AARCH64, i, 8), 0);
  }
  description.operands = operands;
  uint64_t stapsdt = sdt_stapsdt_note_size(&description);
  uint64_t rbtrace = sdt_rbtrace_note_size(&description);
  sdt_stapsdt_note_write(&description, sdt_elf_site(elf, 0), elf->base,
                         emitted.bytes + elf->stapsdt);
  sdt_rbtrace_note_write(&description, sdt_elf_site(elf, 0),
                         emitted.bytes + elf->rbtrace);
  memcpy(emitted.bytes + sdt_elf_size_field(elf, SDT_SECTION_STAPSDT), &stapsdt,
         8);
  memcpy(emitted.bytes + sdt_elf_size_field(elf, SDT_SECTION_RBTRACE), &rbtrace,
         8);

  struct reader reader;
  CHECK_EQ(reader_init_bytes(&reader, emitted.bytes, elf->size), 0);
  const struct read_probe *probe = reader_find(&reader, "shop", "sold");
  CHECK(probe && probe->described);
  CHECK_EQ(probe->address, 65536);
  CHECK_EQ(probe->semaphore, 0);
  CHECK_STR(probe->arguments,
            "8@x0 8@x1 8@x2 8@x3 8@x4 8@x5 8@x6 8@x7 8@[sp] 8@[sp, 8] "
            "8@[sp, 16] 8@[sp, 24]");
  reader_deinit(&reader);
  emitted_deinit(&emitted);
}

const struct test elf_tests[] = {
    {"an x86-64 image", x86_64},
    {"an aarch64 image, with pages of 4 and 64 KB", aarch64},
    {"no image for other machines", other_machines},
    {"a probe in an aarch64 image", aarch64_probe},
    {NULL, NULL},
};
