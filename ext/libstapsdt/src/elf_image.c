/* SPDX-License-Identifier: MIT */
#include "elf_image.h"

#include <string.h>

enum segment {
  SEGMENT_TEXT,
  SEGMENT_DATA,
  SEGMENT_DYNAMIC,
  SEGMENT_NOTE,
  SEGMENT_STACK,
  SEGMENT_COUNT
};

enum { SYMBOL_NULL, SYMBOL_TEXT, SYMBOL_SITES, SYMBOL_COUNT };

#define SITES_NAME "sdt_sites"

struct front {
  Elf64_Ehdr ehdr;
  Elf64_Phdr phdr[SEGMENT_COUNT];
  struct {
    Elf64_Nhdr header;
    char name[4];
    uint8_t id[SDT_BUILD_ID_SIZE];
  } build_id;
  Elf64_Sym dynsym[SYMBOL_COUNT];
  struct {
    uint32_t buckets;
    uint32_t chains;
    uint32_t bucket[1];
    uint32_t chain[SYMBOL_COUNT];
  } hash;
  char dynstr[1 + sizeof(SITES_NAME)];
  char base[1];
};

struct data {
  Elf64_Dyn dynamic[6];
  char probes[8];
};

/*
 * .note.stapsdt precedes .note.rbtrace. A reader that takes the headers in
 * order reads the size of the rbtrace notes last, so it sees an rbtrace note
 * for every stapsdt note.
 */
#define SECTION_NAMES(X)                                                       \
  X(SDT_SECTION_NULL, null, "")                                                \
  X(SDT_SECTION_BUILD_ID, build_id, ".note.gnu.build-id")                      \
  X(SDT_SECTION_DYNSYM, dynsym, ".dynsym")                                     \
  X(SDT_SECTION_HASH, hash, ".hash")                                           \
  X(SDT_SECTION_DYNSTR, dynstr, ".dynstr")                                     \
  X(SDT_SECTION_BASE, base, ".stapsdt.base")                                   \
  X(SDT_SECTION_TEXT, text, ".text")                                           \
  X(SDT_SECTION_DYNAMIC, dynamic, ".dynamic")                                  \
  X(SDT_SECTION_PROBES, probes, ".probes")                                     \
  X(SDT_SECTION_STAPSDT, stapsdt, ".note.stapsdt")                             \
  X(SDT_SECTION_RBTRACE, rbtrace, ".note.rbtrace")                             \
  X(SDT_SECTION_SHSTRTAB, shstrtab, ".shstrtab")

struct names {
#define NAME_FIELD(section, field, text) char field[sizeof(text)];
  SECTION_NAMES(NAME_FIELD)
#undef NAME_FIELD
};

static const struct names names = {
#define NAME_TEXT(section, field, text) .field = text,
    SECTION_NAMES(NAME_TEXT)
#undef NAME_TEXT
};

static const uint32_t name_offsets[SDT_SECTION_COUNT] = {
#define NAME_OFFSET(section, field, text)                                      \
  [section] = offsetof(struct names, field),
    SECTION_NAMES(NAME_OFFSET)
#undef NAME_OFFSET
};

struct tables {
  Elf64_Shdr shdr[SDT_SECTION_COUNT];
  struct names names;
};

_Static_assert(sizeof(struct front) <= 4096, "the front must fit in page 0");
_Static_assert(sizeof(struct tables) <= 4096, "the tables must fit in a page");

static const unsigned char x86_64_site[SDT_SITE_SIZE] = {
    0x90, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc};
static const unsigned char aarch64_site[SDT_SITE_SIZE] = {
    0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6};

static size_t round_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

uint16_t sdt_elf_native(void) {
#if defined(__x86_64__) && defined(__LP64__)
  return EM_X86_64;
#elif defined(__aarch64__) && defined(__LP64__) &&                             \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return EM_AARCH64;
#else
  return EM_NONE;
#endif
}

int sdt_elf_init(struct sdt_elf *elf, uint16_t machine, size_t page,
                 size_t sites) {
  if (machine != EM_X86_64 && machine != EM_AARCH64)
    return -1;

  if (sites < SDT_MIN_SITES)
    sites = SDT_MIN_SITES;
  memset(elf, 0, sizeof(*elf));
  elf->machine = machine;
  elf->base = offsetof(struct front, base);
  elf->build_id = offsetof(struct front, build_id.id);
  /* Page 0 is never writable and contains no site, so a tracer that patches a
   * site does not copy the headers. */
  elf->text = page;
  elf->text_end = elf->text + round_up(sites * SDT_SITE_SIZE, page);
  elf->sites = (elf->text_end - elf->text) / SDT_SITE_SIZE;
  elf->data = elf->text_end;
  elf->tables = elf->data + page;
  elf->stapsdt = elf->tables + page;
  elf->stapsdt_room = round_up(elf->sites * SDT_STAPSDT_ROOM, page);
  elf->rbtrace = elf->stapsdt + elf->stapsdt_room;
  elf->rbtrace_room = round_up(elf->sites * SDT_RBTRACE_ROOM, page);
  elf->size = elf->rbtrace + elf->rbtrace_room;
  return 0;
}

static void emit_ehdr(const struct sdt_elf *elf, Elf64_Ehdr *ehdr) {
  memcpy(ehdr->e_ident, ELFMAG, SELFMAG);
  ehdr->e_ident[EI_CLASS] = ELFCLASS64;
  ehdr->e_ident[EI_DATA] = ELFDATA2LSB;
  ehdr->e_ident[EI_VERSION] = EV_CURRENT;
  ehdr->e_type = ET_DYN;
  ehdr->e_machine = elf->machine;
  ehdr->e_version = EV_CURRENT;
  ehdr->e_phoff = offsetof(struct front, phdr);
  ehdr->e_shoff = elf->tables + offsetof(struct tables, shdr);
  ehdr->e_ehsize = sizeof(Elf64_Ehdr);
  ehdr->e_phentsize = sizeof(Elf64_Phdr);
  ehdr->e_phnum = SEGMENT_COUNT;
  ehdr->e_shentsize = sizeof(Elf64_Shdr);
  ehdr->e_shnum = SDT_SECTION_COUNT;
  ehdr->e_shstrndx = SDT_SECTION_SHSTRTAB;
}

static void emit_segment(Elf64_Phdr *phdr, uint32_t type, uint32_t flags,
                         size_t offset, size_t size, size_t align) {
  *phdr = (Elf64_Phdr){
      .p_type = type,
      .p_flags = flags,
      .p_offset = offset,
      .p_vaddr = offset,
      .p_paddr = offset,
      .p_filesz = size,
      .p_memsz = size,
      .p_align = align,
  };
}

static void emit_segments(const struct sdt_elf *elf, Elf64_Phdr *phdr) {
  size_t page = elf->text;

  emit_segment(&phdr[SEGMENT_TEXT], PT_LOAD, PF_R | PF_X, 0, elf->text_end,
               page);
  /* glibc before 2.35 writes to .dynamic regardless of its flags. */
  emit_segment(&phdr[SEGMENT_DATA], PT_LOAD, PF_R | PF_W, elf->data,
               sizeof(struct data), page);
  emit_segment(&phdr[SEGMENT_DYNAMIC], PT_DYNAMIC, PF_R | PF_W,
               elf->data + offsetof(struct data, dynamic),
               sizeof(((struct data *)0)->dynamic), 8);
  emit_segment(&phdr[SEGMENT_NOTE], PT_NOTE, PF_R,
               offsetof(struct front, build_id),
               sizeof(((struct front *)0)->build_id), 4);
  /* Without this segment, loaders make all stacks executable. */
  emit_segment(&phdr[SEGMENT_STACK], PT_GNU_STACK, PF_R | PF_W, 0, 0, 16);
}

static void emit_front(const struct sdt_elf *elf,
                       const uint8_t build_id[SDT_BUILD_ID_SIZE],
                       struct front *front) {
  emit_ehdr(elf, &front->ehdr);
  emit_segments(elf, front->phdr);

  front->build_id.header = (Elf64_Nhdr){
      .n_namesz = sizeof(front->build_id.name),
      .n_descsz = SDT_BUILD_ID_SIZE,
      .n_type = NT_GNU_BUILD_ID,
  };
  memcpy(front->build_id.name, ELF_NOTE_GNU, sizeof(front->build_id.name));
  memcpy(front->build_id.id, build_id, SDT_BUILD_ID_SIZE);

  front->dynsym[SYMBOL_TEXT] = (Elf64_Sym){
      .st_info = ELF64_ST_INFO(STB_LOCAL, STT_SECTION),
      .st_shndx = SDT_SECTION_TEXT,
      .st_value = elf->text,
  };
  front->dynsym[SYMBOL_SITES] = (Elf64_Sym){
      .st_name = 1,
      .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
      .st_shndx = SDT_SECTION_TEXT,
      .st_value = elf->text,
      .st_size = elf->text_end - elf->text,
  };
  memcpy(front->dynstr + 1, SITES_NAME, sizeof(SITES_NAME));

  /* One bucket chains all symbols. musl loads no file without a hash table. */
  front->hash.buckets = 1;
  front->hash.chains = SYMBOL_COUNT;
  front->hash.bucket[0] = SYMBOL_SITES;
}

static void emit_text(const struct sdt_elf *elf, unsigned char *text) {
  const unsigned char *site =
      elf->machine == EM_X86_64 ? x86_64_site : aarch64_site;

  for (size_t i = 0; i < elf->sites; i++)
    memcpy(text + i * SDT_SITE_SIZE, site, SDT_SITE_SIZE);
}

static void emit_data(struct data *data) {
  const Elf64_Dyn dynamic[6] = {
      {DT_HASH, {offsetof(struct front, hash)}},
      {DT_STRTAB, {offsetof(struct front, dynstr)}},
      {DT_SYMTAB, {offsetof(struct front, dynsym)}},
      {DT_STRSZ, {sizeof(((struct front *)0)->dynstr)}},
      {DT_SYMENT, {sizeof(Elf64_Sym)}},
      {DT_NULL, {0}},
  };

  memcpy(data->dynamic, dynamic, sizeof(dynamic));
}

static void emit_section(struct tables *tables, enum sdt_section section,
                         Elf64_Shdr shdr) {
  shdr.sh_name = name_offsets[section];
  /* Loaded sections have the same address and file offset. */
  if (shdr.sh_flags & SHF_ALLOC)
    shdr.sh_addr = shdr.sh_offset;
  if (!shdr.sh_addralign)
    shdr.sh_addralign = 1;
  tables->shdr[section] = shdr;
}

#define FRONT(field)                                                           \
  .sh_offset = offsetof(struct front, field),                                  \
  .sh_size = sizeof(((struct front *)0)->field), .sh_flags = SHF_ALLOC
#define DATA(field)                                                            \
  .sh_offset = elf->data + offsetof(struct data, field),                       \
  .sh_size = sizeof(((struct data *)0)->field),                                \
  .sh_flags = SHF_ALLOC | SHF_WRITE

static void emit_tables(const struct sdt_elf *elf, struct tables *tables) {
  tables->names = names;

  emit_section(tables, SDT_SECTION_BUILD_ID,
               (Elf64_Shdr){.sh_type = SHT_NOTE, FRONT(build_id),
                            .sh_addralign = 4});
  emit_section(tables, SDT_SECTION_DYNSYM,
               (Elf64_Shdr){.sh_type = SHT_DYNSYM, FRONT(dynsym),
                            .sh_link = SDT_SECTION_DYNSTR,
                            .sh_info = SYMBOL_SITES, .sh_addralign = 8,
                            .sh_entsize = sizeof(Elf64_Sym)});
  emit_section(tables, SDT_SECTION_HASH,
               (Elf64_Shdr){.sh_type = SHT_HASH, FRONT(hash),
                            .sh_link = SDT_SECTION_DYNSYM, .sh_addralign = 8,
                            .sh_entsize = sizeof(uint32_t)});
  emit_section(tables, SDT_SECTION_DYNSTR,
               (Elf64_Shdr){.sh_type = SHT_STRTAB, FRONT(dynstr)});
  emit_section(tables, SDT_SECTION_BASE,
               (Elf64_Shdr){.sh_type = SHT_PROGBITS, FRONT(base)});
  emit_section(tables, SDT_SECTION_TEXT,
               (Elf64_Shdr){.sh_type = SHT_PROGBITS,
                            .sh_offset = elf->text,
                            .sh_size = elf->text_end - elf->text,
                            .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
                            .sh_addralign = SDT_SITE_SIZE});
  emit_section(tables, SDT_SECTION_DYNAMIC,
               (Elf64_Shdr){.sh_type = SHT_DYNAMIC, DATA(dynamic),
                            .sh_link = SDT_SECTION_DYNSTR, .sh_addralign = 8,
                            .sh_entsize = sizeof(Elf64_Dyn)});
  emit_section(tables, SDT_SECTION_PROBES,
               (Elf64_Shdr){.sh_type = SHT_PROGBITS, DATA(probes),
                            .sh_addralign = 2});
  emit_section(tables, SDT_SECTION_STAPSDT,
               (Elf64_Shdr){.sh_type = SHT_NOTE, .sh_offset = elf->stapsdt,
                            .sh_addralign = 4});
  emit_section(tables, SDT_SECTION_RBTRACE,
               (Elf64_Shdr){.sh_type = SHT_NOTE, .sh_offset = elf->rbtrace,
                            .sh_addralign = 4});
  emit_section(tables, SDT_SECTION_SHSTRTAB,
               (Elf64_Shdr){.sh_type = SHT_STRTAB,
                            .sh_offset =
                                elf->tables + offsetof(struct tables, names),
                            .sh_size = sizeof(struct names)});
}

void sdt_elf_emit(const struct sdt_elf *elf,
                  const uint8_t build_id[SDT_BUILD_ID_SIZE],
                  unsigned char *ret) {
  struct front front = {0};
  struct data data = {0};
  struct tables tables = {0};

  emit_front(elf, build_id, &front);
  emit_data(&data);
  emit_tables(elf, &tables);
  memcpy(ret, &front, sizeof(front));
  emit_text(elf, ret + elf->text);
  memcpy(ret + elf->data, &data, sizeof(data));
  memcpy(ret + elf->tables, &tables, sizeof(tables));
}

size_t sdt_elf_size_field(const struct sdt_elf *elf,
                          enum sdt_section section) {
  return elf->tables + offsetof(struct tables, shdr) +
         section * sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_size);
}
