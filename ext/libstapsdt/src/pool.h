/*
 * The functions of a pool that only the original interface needs.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef SDT_POOL_H
#define SDT_POOL_H

#include "image.h"
#include "note.h"

/*
 * The process-wide lock. It is held while probes are defined and while the
 * process forks, so that a child never sees half an image.
 *
 * The loader is called without it: the loader runs constructors of libraries
 * under its own lock, and these may define probes. A fork waits until images
 * are loaded or unloaded, but not forever: a constructor may fork as well,
 * while another thread waits for the loader.
 */
void sdt_lock(void);
void sdt_unlock(void);

/*
 * Call the following functions with the lock held. close, grow, and add release
 * it while they call the loader, and hold it on return.
 */

/*
 * Create a pool whose images are files in `directory` (NULL: memfds), named
 * after `label` (NULL: the default name). The directory in the environment
 * takes precedence. Returns NULL if out of memory.
 */
sdt_pool *sdt_pool_open(const char *directory, const char *label);
/* Returns 0, or -1 if an image was already unloaded. */
int sdt_pool_close(sdt_pool *pool);

/*
 * Create the next image now instead of with the next probe. If another thread
 * does so at the same time, its image may be used. Returns an sdt_status.
 */
int sdt_pool_grow(sdt_pool *pool, sdt_error *error);
int sdt_pool_add(sdt_pool *pool, const struct sdt_description *description,
                 sdt_error *error, sdt_probe **ret);
/* Return the newest image, or NULL if the pool is empty. */
struct sdt_image *sdt_pool_newest(sdt_pool *pool);

#endif /* SDT_POOL_H */
