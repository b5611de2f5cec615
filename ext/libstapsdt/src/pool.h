/*
 * The part of a pool that the original interface needs beyond libstapsdt.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef SDT_POOL_H
#define SDT_POOL_H

#include "image.h"
#include "note.h"

/*
 * One lock for the process: held while probes are defined and while the
 * process forks, so that a child never sees half an image.
 *
 * The loader is called without it. The loader has a lock of its own, under
 * which it runs the constructors of libraries, and those may define probes.
 * A fork waits for what is being loaded or unloaded, though not for ever: a
 * constructor may fork, too, while another thread waits for the loader.
 */
void sdt_lock(void);
void sdt_unlock(void);

/*
 * All that follows with the lock held. Those that call the loader (close, grow
 * and add) give it up meanwhile, and have it again when they return.
 */

/*
 * A pool whose images are files in `directory` (NULL: memfds), named after
 * `label` (NULL: a name of our own). The environment's directory goes first.
 */
sdt_pool *sdt_pool_open(const char *directory, const char *label);
/* Returns 0, or -1 when somebody else had unloaded an image. */
int sdt_pool_close(sdt_pool *pool);

/*
 * Make the next image now, not with the next probe. Another thread may do so
 * at the same time: then its image is the next one.
 */
int sdt_pool_grow(sdt_pool *pool, sdt_error *error);
int sdt_pool_add(sdt_pool *pool, const struct sdt_description *description,
                 sdt_error *error, sdt_probe **ret);
/* NULL while there is none. */
struct sdt_image *sdt_pool_newest(sdt_pool *pool);

#endif /* SDT_POOL_H */
