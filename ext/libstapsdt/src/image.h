/*
 * One image: an ELF file made at run time, mapped twice. Once as a loader
 * maps it, where the sites are called and where tracers patch them; and once
 * shared and writable, through which notes are added.
 *
 * The caller holds the pool's lock around every function here but two: create
 * and destroy call the loader, which must not happen under a lock of ours.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef SDT_IMAGE_H
#define SDT_IMAGE_H

#include <sys/types.h>

#include "common.h"
#include "elf_image.h"
#include "note.h"

struct sdt_image {
  struct sdt_image *next;
  struct sdt_elf elf;
  uint8_t build_id[SDT_BUILD_ID_SIZE];
  sdt_probe *probes;     /* one a site */
  int fd;                /* -1 when the image is a file in a directory */
  dev_t device;          /* of fd, to know it again */
  ino_t inode;
  char *path;            /* it was loaded by */
  int unlink;            /* path is ours to remove */
  void *handle;          /* of dlopen; NULL when it was mapped by hand */
  /* The loader's copy of path. Kept, since a forked child may not ask for it:
   * another thread may have held the loader's lock. */
  char *loader_name;
  unsigned char *loaded; /* address of file offset 0; NULL until loaded */
  unsigned char *shared; /* address of file offset elf.tables; NULL until then */
  pid_t owner;
  size_t used; /* sites */
  size_t stapsdt_used;
  size_t rbtrace_used;
};

/*
 * Make an image and load it.
 *
 * sites: at least so many
 * directory: make a file in it; NULL: a memfd
 * label: what the file's name begins with; NULL: a name of our own
 * Returns SDT_OK and the image, or another status with nothing left behind.
 */
int sdt_image_create(size_t sites, const char *directory, const char *label,
                     sdt_error *error, struct sdt_image **ret);
/* Returns 0, or -1 when somebody else had unloaded it; it is gone in any case. */
int sdt_image_destroy(struct sdt_image *image);

/*
 * Lay a probe down. It is visible to readers of the file when this returns;
 * a reader that comes in between sees all of it or nothing.
 * Returns the probe, or NULL when it does not fit any more.
 */
sdt_probe *sdt_image_add(struct sdt_image *image,
                         const struct sdt_description *description);

/* Remove the file of an image that is kept as one, if this process made it. */
void sdt_image_unlink(struct sdt_image *image);

/* In a forked child: debuggers of the child must not look for the parent. */
void sdt_image_adopt(struct sdt_image *image);

#endif /* SDT_IMAGE_H */
