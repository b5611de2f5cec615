/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DIRECTORY_VARIABLE "TRACEPOINT_IMAGE_DIR"

/* A fork waits for the loader for at most one second. */
#define FORK_PAUSE_NS 100000
#define FORK_PAUSES 10000

struct sdt_pool {
  struct sdt_pool *next;
  struct sdt_pool *previous;
  struct sdt_image *images; /* newest first; new probes go to the first */
  unsigned forks;           /* value of `forks` when the first was created */
  unsigned filled;          /* number of images that are full */
  char *directory;
  char *label;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static sdt_pool *pools;
static unsigned forks;
static unsigned loading; /* threads that are loading or unloading an image */

/* Eight bytes to which sdt_probe.watch can point. */
static const volatile uint64_t watch_idle = SDT_SITE_IDLE;
static const volatile uint64_t watch_always = ~SDT_SITE_IDLE;

void sdt_lock(void) { pthread_mutex_lock(&lock); }

void sdt_unlock(void) { pthread_mutex_unlock(&lock); }

/* The loader may be called between these two functions. */
static void begin_loading(void) {
  loading++;
  sdt_unlock();
}

static void end_loading(void) {
  sdt_lock();
  /* It is 0 in a child that was forked in the meantime. */
  if (loading)
    loading--;
}

/*
 * Let running loads finish: a child would have half an image and a loader in
 * an unknown state. A load that takes longer may be waiting for the loader's
 * lock, which this thread may hold, so stop waiting after a second.
 */
static void before_fork(void) {
  const struct timespec pause = {0, FORK_PAUSE_NS};
  sdt_lock();
  for (unsigned i = 0; loading && i < FORK_PAUSES; i++) {
    sdt_unlock();
    nanosleep(&pause, NULL);
    sdt_lock();
  }
}

static void after_fork_in_parent(void) {
  forks++;
  sdt_unlock();
}

static void after_fork_in_child(void) {
  forks++;
  loading = 0;
  for (sdt_pool *pool = pools; pool; pool = pool->next)
    for (struct sdt_image *image = pool->images; image; image = image->next)
      sdt_image_adopt(image);
  sdt_unlock();
}

static void register_handlers(void) {
  /* Fails only if out of memory; the owner check in has_room remains. */
  (void)pthread_atfork(before_fork, after_fork_in_parent,
                       after_fork_in_child);
}

/* Remove the files of images when their process exits. They stay if another
 * thread holds the lock while the process exits. */
__attribute__((destructor)) static void remove_files(void) {
  if (pthread_mutex_trylock(&lock) != 0)
    return;
  for (sdt_pool *pool = pools; pool; pool = pool->next)
    for (struct sdt_image *image = pool->images; image; image = image->next)
      sdt_image_unlink(image);
  sdt_unlock();
}

/* ------------------------------------------------------------------ pools */

static int copy_string(const char *text, char **ret) {
  *ret = text ? strdup(text) : NULL;
  return text && !*ret ? -1 : 0;
}

/* Use an absolute path: the program may change its directory before files are
 * removed. A missing directory is reported by the first definition. */
static int copy_directory(const char *directory, char **ret) {
  *ret = directory ? realpath(directory, NULL) : NULL;
  return *ret ? 0 : copy_string(directory, ret);
}

static int pool_init(sdt_pool *pool, const char *directory,
                     const char *label) {
  memset(pool, 0, sizeof(*pool));
  const char *configured = secure_getenv(DIRECTORY_VARIABLE);
  if (configured && *configured)
    directory = configured;
  if (copy_directory(directory, &pool->directory) != 0 ||
      copy_string(label, &pool->label) != 0)
    return -1;
  return 0;
}

static int pool_deinit(sdt_pool *pool) {
  int status = 0;
  struct sdt_image *next;
  for (struct sdt_image *image = pool->images; image; image = next) {
    next = image->next;
    if (sdt_image_destroy(image) != 0)
      status = -1;
  }
  free(pool->directory);
  free(pool->label);
  return status;
}

static void pool_link(sdt_pool *pool) {
  pool->next = pools;
  if (pools)
    pools->previous = pool;
  pools = pool;
}

static void pool_unlink(sdt_pool *pool) {
  if (pool->next)
    pool->next->previous = pool->previous;
  if (pool->previous)
    pool->previous->next = pool->next;
  else
    pools = pool->next;
}

sdt_pool *sdt_pool_open(const char *directory, const char *label) {
  pthread_once(&once, register_handlers);
  sdt_pool *pool = malloc(sizeof(*pool));
  if (!pool)
    return NULL;
  if (pool_init(pool, directory, label) != 0) {
    (void)pool_deinit(pool);
    free(pool);
    return NULL;
  }

  pool_link(pool);
  return pool;
}

SDT_EXPORT sdt_pool *sdt_pool_create(void) {
  sdt_lock();
  sdt_pool *pool = sdt_pool_open(NULL, NULL);
  sdt_unlock();
  return pool;
}

int sdt_pool_close(sdt_pool *pool) {
  pool_unlink(pool);
  begin_loading();
  int status = pool_deinit(pool);
  free(pool);
  end_loading();
  return status;
}

SDT_EXPORT void sdt_pool_destroy(sdt_pool *pool) {
  if (!pool)
    return;
  sdt_lock();
  (void)sdt_pool_close(pool);
  sdt_unlock();
}

struct sdt_image *sdt_pool_newest(sdt_pool *pool) { return pool->images; }

/* ---------------------------------------------------------------- probes */

/*
 * After a fork, two processes share a memfd: neither may write to it. The
 * owner's pid reveals a fork that ran no handlers (a plain clone).
 */
static int is_current(const sdt_pool *pool) {
  return pool->images && pool->forks == forks &&
         pool->images->owner == getpid();
}

static size_t next_size(unsigned filled) {
  static const size_t sizes[] = {1024, 4096, 16384};
  const unsigned last = sizeof(sizes) / sizeof(sizes[0]) - 1;
  return sizes[filled < last ? filled : last];
}

static int make_image(const sdt_pool *pool, size_t sites, sdt_error *error,
                      struct sdt_image **ret) {
  begin_loading();
  int status =
      sdt_image_create(sites, pool->directory, pool->label, error, ret);
  end_loading();
  return status;
}

static void discard_image(struct sdt_image *image) {
  begin_loading();
  (void)sdt_image_destroy(image);
  end_loading();
}

int sdt_pool_grow(sdt_pool *pool, sdt_error *error) {
  for (;;) {
    const struct sdt_image *outgrown = pool->images;
    const unsigned filled = pool->filled + (unsigned)is_current(pool);
    const unsigned before = forks;
    struct sdt_image *image;
    int status = make_image(pool, next_size(filled), error, &image);
    if (status != SDT_OK)
      return status;

    if (pool->images == outgrown && forks == before) {
      image->next = pool->images;
      pool->images = image;
      pool->filled = filled;
      pool->forks = forks;
      return SDT_OK;
    }
    /* Another thread was faster, or this is a forked child's image. */
    discard_image(image);
    if (pool->images != outgrown && is_current(pool))
      return SDT_OK;
  }
}

int sdt_pool_add(sdt_pool *pool, const struct sdt_description *description,
                 sdt_error *error, sdt_probe **ret) {
  for (;;) {
    if (is_current(pool)) {
      sdt_probe *probe = sdt_image_add(pool->images, description);
      if (probe) {
        *ret = probe;
        return SDT_OK;
      }
      if (pool->images->used == 0)
        return sdt_fail(error, SDT_EIMAGE, "%s", "the notes are too long");
    }
    int status = sdt_pool_grow(pool, error);
    if (status != SDT_OK)
      return status;
  }
}

static int is_name(const char *name) {
  if (!name)
    return 0;
  size_t length = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "abcdefghijklmnopqrstuvwxyz0123456789_");
  return length >= 1 && length <= SDT_MAX_NAME && !name[length];
}

static int check_names(const char *provider, const char *name,
                       sdt_error *error) {
  if (!is_name(provider))
    return sdt_fail(error, SDT_ENAME, "provider");
  if (!is_name(name))
    return sdt_fail(error, SDT_ENAME, "probe");
  return SDT_OK;
}

static int check_operands(const sdt_operand *operands, size_t count,
                          sdt_error *error) {
  if (count > SDT_MAX_OPERANDS || (count && !operands))
    return sdt_fail(error, SDT_EOPERANDS, "%zu", count);
  for (size_t i = 0; i < count; i++) {
    const sdt_operand *operand = &operands[i];
    if (operand->name && *operand->name && !is_name(operand->name))
      return sdt_fail(error, SDT_ENAME, "operand %zu", i);
    if (operand->type < SDT_INTEGER || operand->type > SDT_OPEN ||
        (unsigned)operand->role > SDT_RESULT)
      return sdt_fail(error, SDT_ETYPE, "operand %zu", i);
  }
  return SDT_OK;
}

static int describe(struct sdt_description *description, sdt_error *error) {
  for (size_t i = 0; i < description->count; i++) {
    sdt_type type = description->operands[i].type;
    int width = type == SDT_INTEGER || type == SDT_OPEN ? -8 : 8;
    if (sdt_append_argument(description->arguments, sdt_elf_native(), i,
                            width) != 0)
      return sdt_fail(error, SDT_EOPERANDS, "operand %zu", i);
  }
  return SDT_OK;
}

static int define(sdt_pool *pool, const char *provider, const char *name,
                  sdt_probe_role role, const sdt_operand *operands,
                  size_t count, const char *method, sdt_error *error,
                  sdt_probe **ret) {
  int status = check_names(provider, name, error);
  if (status == SDT_OK)
    status = check_operands(operands, count, error);
  if (status == SDT_OK && (unsigned)role > SDT_SPAN_END)
    status = sdt_fail(error, SDT_ETYPE, "probe");
  if (status == SDT_OK && sdt_elf_native() == EM_NONE)
    status = sdt_fail(error, SDT_EUNSUPPORTED, "%s", "");
  if (status != SDT_OK)
    return status;

  struct sdt_description description = {
      .provider = provider,
      .name = name,
      .rbtrace = 1,
      .role = role,
      .operands = operands,
      .count = count,
      .method = method,
  };
  status = describe(&description, error);
  if (status != SDT_OK)
    return status;
  sdt_lock();
  status = sdt_pool_add(pool, &description, error, ret);
  sdt_unlock();
  return status;
}

SDT_EXPORT int sdt_define(sdt_pool *pool, const char *provider,
                          const char *name, sdt_probe_role role,
                          const sdt_operand *operands, size_t count,
                          sdt_error *error, sdt_probe **ret) {
  return define(pool, provider, name, role, operands, count, NULL, error, ret);
}

SDT_EXPORT int sdt_define_method(sdt_pool *pool, const char *provider,
                                 const char *name, sdt_probe_role role,
                                 const sdt_operand *operands, size_t count,
                                 const char *method, sdt_error *error,
                                 sdt_probe **ret) {
  size_t length = method ? strlen(method) : 0;
  if (length < 1 || length > SDT_MAX_METHOD)
    return sdt_fail(error, SDT_ENAME, "method");
  return define(pool, provider, name, role, operands, count, method, error,
                ret);
}

SDT_EXPORT int sdt_settle(sdt_probe *probe, size_t index, sdt_type type,
                          sdt_type *ret) {
  if (!probe->note || index >= probe->count)
    return SDT_EOPERANDS;
  if (type < SDT_INTEGER || type > SDT_BOOL)
    return SDT_ETYPE;

  unsigned char *at = sdt_rbtrace_note_type(probe->note, index);
  unsigned char now = SDT_OPEN;
  if (__atomic_compare_exchange_n(at, &now, (unsigned char)type, 0,
                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    now = (unsigned char)type;
  *ret = (sdt_type)now;
  return SDT_OK;
}

/* Readers read `watch` without the lock, so a single store changes it. */
static void update_watch(sdt_probe *probe) {
  const volatile uint64_t *watch = probe->always     ? &watch_always
                                   : probe->disabled ? &watch_idle
                                                     : probe->site;
  __atomic_store_n(&probe->watch, watch, __ATOMIC_RELEASE);
}

static void set_disabled(sdt_probe *probe, uint8_t disabled) {
  sdt_lock();
  __atomic_store_n(&probe->disabled, disabled, __ATOMIC_RELAXED);
  update_watch(probe);
  sdt_unlock();
}

SDT_EXPORT void sdt_probe_disable(sdt_probe *probe) { set_disabled(probe, 1); }

SDT_EXPORT void sdt_probe_enable(sdt_probe *probe) { set_disabled(probe, 0); }

SDT_EXPORT void sdt_watch_always(sdt_probe *probe, int on) {
  sdt_lock();
  probe->always = on != 0;
  update_watch(probe);
  sdt_unlock();
}

SDT_EXPORT int sdt_traced(const sdt_probe *probe) {
  return !__atomic_load_n(&probe->disabled, __ATOMIC_RELAXED) &&
         *probe->site != SDT_SITE_IDLE;
}

SDT_EXPORT void sdt_pool_stat(sdt_pool *pool, sdt_pool_stats *ret) {
  *ret = (sdt_pool_stats){0};
  sdt_lock();
  for (struct sdt_image *image = pool->images; image; image = image->next) {
    ret->images++;
    ret->probes += image->used;
    ret->bytes += image->used * SDT_SITE_SIZE + image->stapsdt_used +
                  image->rbtrace_used;
  }
  sdt_unlock();
}
