/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "image.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Newer than the headers of some build systems. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 16
#endif

#define MEMFD_NAME "libstapsdt"
#define PID_WIDTH 10
#define SERIAL_BITS 20
#define PROC_PREFIX "/proc/"

/* ------------------------------------------------------------- the file */

/* Used if the system does not allow getrandom. */
static uint64_t weak_random(unsigned counter) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t value = (uint64_t)now.tv_nsec ^ ((uint64_t)now.tv_sec << 30) ^
                   ((uint64_t)getpid() << 44) ^ (uintptr_t)&now;
  value = (value + counter) * UINT64_C(0x9e3779b97f4a7c15);
  value = (value ^ (value >> 31)) * UINT64_C(0xd6e8feb86659fd93);
  return value ^ (value >> 32);
}

static void make_build_id(uint8_t ret[SDT_BUILD_ID_SIZE]) {
  const unsigned nonblock = 1;
  if (syscall(SYS_getrandom, ret, SDT_BUILD_ID_SIZE, nonblock) ==
      SDT_BUILD_ID_SIZE)
    return;

  static unsigned counter;
  for (size_t i = 0; i < SDT_BUILD_ID_SIZE; i++)
    ret[i] = (uint8_t)weak_random(
        __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED));
}

static int open_memfd(struct sdt_image *image, sdt_error *error) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  image->fd =
      (int)syscall(SYS_memfd_create, MEMFD_NAME, flags | MFD_NOEXEC_SEAL);
  /* Linux before 6.3 does not know this flag. */
  if (image->fd < 0 && errno == EINVAL)
    image->fd = (int)syscall(SYS_memfd_create, MEMFD_NAME, flags);
  if (image->fd < 0)
    return sdt_fail(error, SDT_EIMAGE, "memfd_create: %m");
  return SDT_OK;
}

static int open_file(struct sdt_image *image, const char *directory,
                     const char *label, sdt_error *error) {
  int length =
      label ? asprintf(&image->path, "%s/%s-XXXXXX.so", directory, label)
            : asprintf(&image->path, "%s/" MEMFD_NAME "-%ld-XXXXXX.so",
                       directory, (long)getpid());
  if (length < 0) {
    image->path = NULL;
    return sdt_fail(error, SDT_ENOMEM, "%s", "");
  }

  image->fd = mkostemps(image->path, 3, O_CLOEXEC);
  if (image->fd < 0)
    return sdt_fail(error, SDT_EIMAGE, "%s: %m", image->path);
  image->unlink = 1;
  return SDT_OK;
}

static int write_whole(int fd, const unsigned char *bytes, size_t size) {
  size_t done = 0;
  while (done < size) {
    ssize_t written = pwrite(fd, bytes + done, size - done, (off_t)done);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return -1;
    done += (size_t)written;
  }
  return 0;
}

static int write_head(struct sdt_image *image, sdt_error *error) {
  size_t size = sdt_elf_head(&image->elf);
  unsigned char *head = calloc(1, size);
  if (!head)
    return sdt_fail(error, SDT_ENOMEM, "%s", "");

  sdt_elf_emit(&image->elf, image->build_id, head);
  int status = SDT_OK;
  if (write_whole(image->fd, head, size) != 0)
    status = sdt_fail(error, SDT_EIMAGE, "write: %m");
  free(head);
  return status;
}

/* Growing a file beyond this limit raises SIGXFSZ, which kills the process. */
static int check_file_limit(const struct sdt_image *image, sdt_error *error) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
      limit.rlim_cur < image->elf.size) {
    errno = EFBIG;
    return sdt_fail(error, SDT_EIMAGE, "RLIMIT_FSIZE: %m");
  }
  return SDT_OK;
}

/* A memfd stays sparse. The blocks of a file are allocated now: if the disk
 * filled up later, writing a note would kill the process. */
static int reserve(struct sdt_image *image, sdt_error *error) {
  if (image->unlink) {
    if (fchmod(image->fd, 0644) != 0)
      return sdt_fail(error, SDT_EIMAGE, "fchmod: %m");
    errno = posix_fallocate(image->fd, 0, (off_t)image->elf.size);
    if (errno != 0)
      return sdt_fail(error, SDT_EIMAGE, "posix_fallocate: %m");
  } else if (ftruncate(image->fd, (off_t)image->elf.size) != 0) {
    return sdt_fail(error, SDT_EIMAGE, "ftruncate: %m");
  }
  return SDT_OK;
}

static int map_shared(struct sdt_image *image, sdt_error *error) {
  size_t size = image->elf.size - image->elf.tables;
  void *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                      image->fd, (off_t)image->elf.tables);
  if (shared == MAP_FAILED)
    return sdt_fail(error, SDT_EIMAGE, "mmap: %m");

  image->shared = shared;
  return SDT_OK;
}

/* From here on, only our mapping can change the file. */
static void seal(int fd) {
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  /* Linux before 5.1 does not know F_SEAL_FUTURE_WRITE. */
  if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) != 0)
    (void)fcntl(fd, F_ADD_SEALS, seals);
}

static int identify(struct sdt_image *image, sdt_error *error) {
  struct stat stat;
  if (fstat(image->fd, &stat) != 0)
    return sdt_fail(error, SDT_EIMAGE, "fstat: %m");
  image->device = stat.st_dev;
  image->inode = stat.st_ino;
  return SDT_OK;
}

static int make_file(struct sdt_image *image, const char *directory,
                     const char *label, sdt_error *error) {
  int status = check_file_limit(image, error);
  if (status == SDT_OK)
    status = directory ? open_file(image, directory, label, error)
                       : open_memfd(image, error);
  if (status == SDT_OK)
    status = identify(image, error);
  if (status == SDT_OK)
    status = reserve(image, error);
  if (status == SDT_OK)
    status = write_head(image, error);
  if (status == SDT_OK)
    status = map_shared(image, error);
  if (status == SDT_OK && !directory)
    seal(image->fd);
  return status;
}

/* A program may have closed all its descriptors, so the number may now belong
 * to another file. */
static void close_own(struct sdt_image *image) {
  struct stat stat;
  if (image->fd >= 0 && fstat(image->fd, &stat) == 0 &&
      stat.st_dev == image->device && stat.st_ino == image->inode)
    close(image->fd);
  image->fd = -1;
}

/* ------------------------------------------------------------- the load */

/* Write PID_WIDTH characters: the number, padded with leading slashes, which
 * count as one in a path. Avoids printf, since forked children call this. */
static void write_pid(char *at, pid_t pid) {
  char *digit = at + PID_WIDTH;
  unsigned long rest = (unsigned long)pid;
  do {
    *--digit = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest);
  while (digit > at)
    *--digit = '/';
}

/*
 * Return a path of the descriptor that an outside debugger can open, hence not
 * through `self`. Loaders take a known path for the known file, and descriptor
 * numbers are reused. Every image therefore has a different path, which
 * encodes a serial number in `./` and `//`.
 */
static char *descriptor_path(int fd) {
  static unsigned serials;
  char serial[2 * SERIAL_BITS + 1];
  unsigned number = __atomic_fetch_add(&serials, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < SERIAL_BITS; i++, number >>= 1) {
    serial[2 * i] = number & 1 ? '.' : '/';
    serial[2 * i + 1] = '/';
  }
  serial[2 * SERIAL_BITS] = 0;

  char pid[PID_WIDTH + 1] = "";
  write_pid(pid, getpid());
  char *path;
  if (asprintf(&path, PROC_PREFIX "%s/fd/%s%d", pid, serial, fd) < 0)
    return NULL;
  return path;
}

static int is_ours(const struct sdt_image *image, const void *loaded) {
  return memcmp((const unsigned char *)loaded + image->elf.build_id,
                image->build_id, SDT_BUILD_ID_SIZE) == 0;
}

static int load_by_loader(struct sdt_image *image) {
  void *handle = dlopen(image->path, RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return -1;

  struct link_map *map;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 ||
      !is_ours(image, (void *)map->l_addr)) {
    dlclose(handle);
    return -1;
  }
  image->handle = handle;
  image->loader_name = map->l_name;
  image->loaded = (unsigned char *)map->l_addr;
  return 0;
}

/* Images mapped without the loader are invisible to gdb, but not to others. */
static int load_by_hand(struct sdt_image *image) {
  void *loaded = mmap(NULL, image->elf.text_end, PROT_READ | PROT_EXEC,
                      MAP_PRIVATE, image->fd, 0);
  if (loaded == MAP_FAILED)
    return -1;
  image->loaded = loaded;
  return 0;
}

static int load(struct sdt_image *image, sdt_error *error) {
  if (!image->path)
    image->path = descriptor_path(image->fd);
  if (!image->path)
    return sdt_fail(error, SDT_ENOMEM, "%s", "");

  /* The loader fails without /proc, or if no descriptor is left. */
  if (load_by_loader(image) != 0 && load_by_hand(image) != 0)
    return sdt_fail(error, SDT_ELOAD, "mmap: %m");
  return SDT_OK;
}

/* Programs that find the handle may have closed it. Closing it again would
 * read freed memory. */
static int close_handle(struct sdt_image *image) {
  void *again = dlopen(image->path, RTLD_LAZY | RTLD_NOLOAD);
  if (!again)
    return -1;
  dlclose(again);
  return dlclose(image->handle);
}

static int unload(struct sdt_image *image) {
  if (image->handle)
    return close_handle(image);
  if (image->loaded)
    return munmap(image->loaded, image->elf.text_end);
  return 0;
}

/* ------------------------------------------------------------ the image */

static int image_init(struct sdt_image *image, size_t sites,
                      const char *directory, const char *label,
                      sdt_error *error) {
  memset(image, 0, sizeof(*image));
  image->fd = -1;
  image->owner = getpid();
  if (sdt_elf_init(&image->elf, sdt_elf_native(),
                   (size_t)sysconf(_SC_PAGESIZE), sites) != 0)
    return sdt_fail(error, SDT_EUNSUPPORTED, "%s", "");

  make_build_id(image->build_id);
  image->probes = calloc(image->elf.sites, sizeof(*image->probes));
  if (!image->probes)
    return sdt_fail(error, SDT_ENOMEM, "%s", "");

  int status = make_file(image, directory, label, error);
  if (status == SDT_OK)
    status = load(image, error);
  /* A file is found by its path; only a memfd needs its descriptor. */
  if (status == SDT_OK && directory) {
    close(image->fd);
    image->fd = -1;
  }
  return status;
}

static int image_deinit(struct sdt_image *image) {
  int status = unload(image);
  if (image->shared)
    munmap(image->shared, image->elf.size - image->elf.tables);
  sdt_image_unlink(image);
  close_own(image);
  free(image->path);
  free(image->probes);
  return status;
}

int sdt_image_create(size_t sites, const char *directory, const char *label,
                     sdt_error *error, struct sdt_image **ret) {
  struct sdt_image *image = malloc(sizeof(*image));
  if (!image)
    return sdt_fail(error, SDT_ENOMEM, "%s", "");

  int status = image_init(image, sites, directory, label, error);
  if (status != SDT_OK) {
    sdt_image_destroy(image);
    return status;
  }
  *ret = image;
  return SDT_OK;
}

int sdt_image_destroy(struct sdt_image *image) {
  int status = image_deinit(image);
  free(image);
  return status;
}

void sdt_image_unlink(struct sdt_image *image) {
  if (image->unlink && image->owner == getpid())
    unlink(image->path);
  image->unlink = 0;
}

void sdt_image_adopt(struct sdt_image *image) {
  /* Keep the name of a file, and the name if the loader has its own copy. */
  if (image->fd < 0 || !image->loader_name ||
      strcmp(image->loader_name, image->path) != 0)
    return;

  pid_t pid = getpid();
  write_pid(image->loader_name + sizeof(PROC_PREFIX) - 1, pid);
  write_pid(image->path + sizeof(PROC_PREFIX) - 1, pid);
}

static unsigned char *shared_at(struct sdt_image *image, size_t offset) {
  return image->shared + (offset - image->elf.tables);
}

/* Readers rely on the size of the section: from here on, the note exists. */
static void publish(struct sdt_image *image, enum sdt_section section,
                    uint64_t size) {
  size_t field = sdt_elf_size_field(&image->elf, section);
  __atomic_store_n((uint64_t *)(void *)shared_at(image, field), size,
                   __ATOMIC_RELEASE);
}

sdt_probe *sdt_image_add(struct sdt_image *image,
                         const struct sdt_description *description) {
  const struct sdt_elf *elf = &image->elf;
  size_t stapsdt = sdt_stapsdt_note_size(description);
  size_t rbtrace = sdt_rbtrace_note_size(description);
  if (image->used == elf->sites ||
      stapsdt > elf->stapsdt_room - image->stapsdt_used ||
      rbtrace > elf->rbtrace_room - image->rbtrace_used)
    return NULL;

  size_t address = sdt_elf_site(elf, image->used);
  unsigned char *note = NULL;
  if (rbtrace) {
    note = shared_at(image, elf->rbtrace + image->rbtrace_used);
    sdt_rbtrace_note_write(description, address, note);
    image->rbtrace_used += rbtrace;
    publish(image, SDT_SECTION_RBTRACE, image->rbtrace_used);
  }
  sdt_stapsdt_note_write(description, address, elf->base,
                         shared_at(image, elf->stapsdt + image->stapsdt_used));
  image->stapsdt_used += stapsdt;
  publish(image, SDT_SECTION_STAPSDT, image->stapsdt_used);

  sdt_probe *probe = &image->probes[image->used++];
  probe->site = (const volatile uint64_t *)(void *)(image->loaded + address);
  probe->watch = probe->site;
  probe->count = (uint8_t)description->count;
  probe->role = (uint8_t)description->role;
  probe->note = note;
  return probe;
}
