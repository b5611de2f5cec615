/*
 * An image: an ELF file created at run time and mapped twice. The first
 * mapping is a loader's: programs call the sites there, and tracers patch
 * them. The second is shared and writable, and receives the notes.
 *
 * Callers hold the pool's lock, except for create and destroy: these call the
 * loader, which must not run under our lock.
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
  sdt_probe *probes;     /* one per site */
  int fd;                /* -1 when the image is a file in a directory */
  dev_t device;          /* of fd, to recognize it */
  ino_t inode;
  char *path;            /* from which it was loaded */
  int unlink;            /* true if we have to remove the file at path */
  void *handle;          /* from dlopen; NULL if mapped without the loader */
  /* The loader's copy of path. A forked child must not ask the loader for it:
   * another thread may have held the loader's lock. */
  char *loader_name;
  unsigned char *loaded; /* address of file offset 0; NULL until loaded */
  unsigned char *shared; /* address of file offset elf.tables; NULL until then */
  pid_t owner;
  size_t used; /* number of sites */
  size_t stapsdt_used;
  size_t rbtrace_used;
};

/*
 * Create an image and load it.
 *
 * sites: minimum number of sites
 * directory: where to create a file; NULL: use a memfd
 * label: prefix of the file's name; NULL: the default
 * error: filled on failure; may be NULL
 * ret: set to the image
 *
 * Returns SDT_OK, or another status without leaving anything behind.
 */
int sdt_image_create(size_t sites, const char *directory, const char *label,
                     sdt_error *error, struct sdt_image **ret);
/* Returns 0, or -1 if it was already unloaded; it is destroyed in any case. */
int sdt_image_destroy(struct sdt_image *image);

/*
 * Add a probe. When this returns, readers of the file see it. A concurrent
 * reader sees all of it or nothing.
 *
 * Returns the probe, or NULL if the image has no room for it.
 */
sdt_probe *sdt_image_add(struct sdt_image *image,
                         const struct sdt_description *description);

/* Remove the file of an image that has one, if this process created it. */
void sdt_image_unlink(struct sdt_image *image);

/* In a forked child: point debuggers of the child to its own descriptor. */
void sdt_image_adopt(struct sdt_image *image);

#endif /* SDT_IMAGE_H */
