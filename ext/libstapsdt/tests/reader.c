/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int wrong(const char *what) {
  printf("  image: %s\n", what);
  return -1;
}

const Elf64_Ehdr *reader_ehdr(const struct reader *reader) {
  return (const Elf64_Ehdr *)(const void *)reader->bytes;
}

static const Elf64_Shdr *sections(const struct reader *reader) {
  return (const Elf64_Shdr *)(const void *)(reader->bytes +
                                            reader_ehdr(reader)->e_shoff);
}

int reader_section_index(const struct reader *reader, const char *name) {
  const Elf64_Ehdr *ehdr = reader_ehdr(reader);
  const Elf64_Shdr *shdr = sections(reader);
  const char *names =
      (const char *)reader->bytes + shdr[ehdr->e_shstrndx].sh_offset;
  for (int i = 0; i < ehdr->e_shnum; i++)
    if (strcmp(names + shdr[i].sh_name, name) == 0)
      return i;
  return -1;
}

const Elf64_Shdr *reader_section(const struct reader *reader,
                                 const char *name) {
  int index = reader_section_index(reader, name);
  return index < 0 ? NULL : &sections(reader)[index];
}

static int check_headers(const struct reader *reader) {
  const Elf64_Ehdr *ehdr = reader_ehdr(reader);
  if (reader->size < sizeof(*ehdr) ||
      memcmp(ehdr->e_ident, ELFMAG, SELFMAG) != 0)
    return wrong("not an ELF file");
  if (ehdr->e_shoff + ehdr->e_shnum * sizeof(Elf64_Shdr) > reader->size)
    return wrong("section headers beyond the end");
  for (int i = 0; i < ehdr->e_shnum; i++) {
    const Elf64_Shdr *shdr = &sections(reader)[i];
    if (shdr->sh_offset + shdr->sh_size > reader->size)
      return wrong("a section beyond the end");
  }
  return 0;
}

struct note {
  uint32_t type;
  const char *owner;
  const unsigned char *body;
  size_t size;
};

/* Return 1 and the next note, 0 at the end, or -1 for an invalid note. */
static int next_note(const struct reader *reader, const Elf64_Shdr *shdr,
                     size_t *at, struct note *ret) {
  if (*at == shdr->sh_size)
    return 0;
  const unsigned char *start = reader->bytes + shdr->sh_offset + *at;
  size_t left = shdr->sh_size - *at;
  Elf64_Nhdr header;
  if (left < sizeof(header))
    return wrong("half a note header");
  memcpy(&header, start, sizeof(header));
  size_t name = (header.n_namesz + 3) & ~(size_t)3;
  size_t body = (header.n_descsz + 3) & ~(size_t)3;
  if (left < sizeof(header) + name + body)
    return wrong("half a note");
  ret->type = header.n_type;
  ret->owner = (const char *)start + sizeof(header);
  ret->body = start + sizeof(header) + name;
  ret->size = header.n_descsz;
  if (header.n_namesz == 0 || ret->owner[header.n_namesz - 1])
    return wrong("a note's owner has no end");
  *at += sizeof(header) + name + body;
  return 1;
}

static int take_string(const struct note *note, size_t *at, const char **ret) {
  const char *start = (const char *)note->body + *at;
  size_t length = strnlen(start, note->size - *at);
  if (*at + length == note->size)
    return wrong("a string has no end");
  *ret = start;
  *at += length + 1;
  return 0;
}

static int read_stapsdt(struct reader *reader, const struct note *note) {
  if (note->type != 3 || strcmp(note->owner, "stapsdt") != 0)
    return wrong("a foreign note among the stapsdt notes");
  if (note->size < 24)
    return wrong("a short stapsdt note");
  struct read_probe *probe = &reader->probes[reader->count++];
  size_t at = 24;
  memcpy(&probe->address, note->body, 8);
  memcpy(&probe->base, note->body + 8, 8);
  memcpy(&probe->semaphore, note->body + 16, 8);
  if (take_string(note, &at, &probe->provider) != 0 ||
      take_string(note, &at, &probe->name) != 0 ||
      take_string(note, &at, &probe->arguments) != 0)
    return -1;
  return at == note->size ? 0 : wrong("a stapsdt note goes on");
}

/* Notes of both kinds are sorted by address. */
static struct read_probe *at_address(struct reader *reader, uint64_t address) {
  size_t low = 0, high = reader->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (reader->probes[middle].address < address)
      low = middle + 1;
    else
      high = middle;
  }
  if (low < reader->count && reader->probes[low].address == address)
    return &reader->probes[low];
  return NULL;
}

static int read_operands(const struct note *note, struct read_probe *probe) {
  size_t at = 12;
  for (size_t i = 0; i < probe->count; i++) {
    if (at == note->size || note->size - at - 1 < note->body[at])
      return wrong("an operand beyond its note");
    size_t entry = note->body[at];
    struct read_operand *operand = &probe->operands[i];
    if (entry < 2 || entry - 2 > SDT_MAX_NAME)
      return wrong("an operand of a strange size");
    operand->role = note->body[at + 1];
    operand->type = note->body[at + 2];
    memcpy(operand->name, note->body + at + 3, entry - 2);
    at += 1 + entry;
  }
  return at == note->size ? 0 : wrong("an rbtrace note goes on");
}

static int read_rbtrace(struct reader *reader, const struct note *note) {
  if (note->type != 1 || strcmp(note->owner, "rbtrace") != 0)
    return wrong("a foreign note among the rbtrace notes");
  if (note->size < 12)
    return wrong("a short rbtrace note");
  uint64_t address;
  memcpy(&address, note->body, 8);
  reader->rbtrace_notes++;
  struct read_probe *probe = at_address(reader, address);
  if (!probe)
    return 0; /* its stapsdt note follows later */
  probe->described = 1;
  memcpy(&probe->version, note->body + 8, 2);
  probe->role = note->body[10];
  probe->count = note->body[11];
  if (probe->count > SDT_MAX_OPERANDS)
    return wrong("too many operands");
  return read_operands(note, probe);
}

static int read_notes(struct reader *reader, const char *section,
                      int (*take)(struct reader *, const struct note *)) {
  const Elf64_Shdr *shdr = reader_section(reader, section);
  if (!shdr)
    return wrong("a note section is missing");
  struct note note;
  size_t at = 0;
  int more;
  while ((more = next_note(reader, shdr, &at, &note)) == 1)
    if (take(reader, &note) != 0)
      return -1;
  return more;
}

static int parse(struct reader *reader) {
  if (check_headers(reader) != 0)
    return -1;
  const Elf64_Shdr *notes = reader_section(reader, ".note.stapsdt");
  if (!notes)
    return wrong("no .note.stapsdt");
  reader->probes = calloc(notes->sh_size / 44 + 1, sizeof(*reader->probes));
  if (!reader->probes || read_notes(reader, ".note.stapsdt", read_stapsdt) != 0)
    return -1;
  return read_notes(reader, ".note.rbtrace", read_rbtrace);
}

int reader_init_bytes(struct reader *reader, const void *bytes, size_t size) {
  memset(reader, 0, sizeof(*reader));
  reader->bytes = malloc(size + 1);
  if (!reader->bytes)
    return wrong("no memory");
  memcpy(reader->bytes, bytes, size);
  reader->size = size;
  return parse(reader);
}

/* The probes of a live image grow. Read the file from its beginning, so that
 * the headers are at least as old as everything else. */
static int read_file(struct reader *reader, int fd) {
  struct stat stat;
  if (fstat(fd, &stat) != 0)
    return wrong("fstat");
  reader->size = (size_t)stat.st_size;
  reader->bytes = malloc(reader->size + 1);
  if (!reader->bytes)
    return wrong("no memory");
  for (size_t done = 0; done < reader->size;) {
    ssize_t got = pread(fd, reader->bytes + done, reader->size - done,
                        (off_t)done);
    if (got <= 0)
      return wrong("pread");
    done += (size_t)got;
  }
  return 0;
}

int reader_init_path(struct reader *reader, const char *path) {
  memset(reader, 0, sizeof(*reader));
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return wrong("open");
  int status = read_file(reader, fd);
  close(fd);
  return status == 0 ? parse(reader) : status;
}

void reader_deinit(struct reader *reader) {
  free(reader->probes);
  free(reader->bytes);
}

const struct read_probe *reader_find(const struct reader *reader,
                                     const char *provider, const char *name) {
  for (size_t i = 0; i < reader->count; i++)
    if (strcmp(reader->probes[i].provider, provider) == 0 &&
        strcmp(reader->probes[i].name, name) == 0)
      return &reader->probes[i];
  return NULL;
}

static int by_number(const void *left, const void *right) {
  const int *a = left, *b = right;
  return *a - *b;
}

static size_t list(pid_t pid, int images_only, int *numbers, size_t size) {
  char path[32];
  snprintf(path, sizeof(path), "/proc/%ld/fd", (long)pid);
  DIR *directory = opendir(path);
  if (!directory)
    return 0;
  size_t count = 0;
  for (struct dirent *entry; (entry = readdir(directory));) {
    char target[64] = "";
    if (entry->d_name[0] == '.')
      continue;
    if (images_only &&
        (readlinkat(dirfd(directory), entry->d_name, target,
                    sizeof(target) - 1) < 0 ||
         strncmp(target, "/memfd:libstapsdt", 17) != 0))
      continue;
    if (pid == getpid() && atoi(entry->d_name) == dirfd(directory))
      continue;
    if (count < size)
      numbers[count] = atoi(entry->d_name);
    count++;
  }
  closedir(directory);
  return count < size ? count : size;
}

size_t reader_images(pid_t pid, char ret[MAX_IMAGES][64]) {
  int numbers[MAX_IMAGES];
  size_t count = list(pid, 1, numbers, MAX_IMAGES);
  qsort(numbers, count, sizeof(numbers[0]), by_number);
  for (size_t i = 0; i < count; i++)
    snprintf(ret[i], 64, "/proc/%ld/fd/%d", (long)pid, numbers[i]);
  return count;
}

size_t reader_descriptors(pid_t pid) {
  int numbers[4 * MAX_IMAGES];
  return list(pid, 0, numbers, 4 * MAX_IMAGES);
}

static int count_in(const char *path, const char *provider, const char *name) {
  struct reader reader;
  int found = 0;
  if (reader_init_path(&reader, path) != 0)
    found = -1;
  for (size_t i = 0; found >= 0 && i < reader.count; i++)
    found += strcmp(reader.probes[i].provider, provider) == 0 &&
             strcmp(reader.probes[i].name, name) == 0;
  reader_deinit(&reader);
  return found;
}

int reader_count(pid_t pid, const char *provider, const char *name) {
  char paths[MAX_IMAGES][64];
  size_t images = reader_images(pid, paths);
  int total = 0;
  for (size_t i = 0; i < images; i++) {
    int found = count_in(paths[i], provider, name);
    if (found < 0)
      return -1;
    total += found;
  }
  return total;
}
