/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "reader.h"

#define THREADS 16

static sdt_pool *pool;
static unsigned long rounds;
static sdt_probe *shared[THREADS];

struct thread {
  pthread_t id;
  int number;
  unsigned seed;
  unsigned long defined;
};

static sdt_probe *define(const char *provider, const char *name,
                         size_t count) {
  sdt_operand operands[SDT_MAX_OPERANDS];
  for (size_t i = 0; i < count; i++)
    operands[i] = (sdt_operand){"x", SDT_INTEGER, SDT_ARGUMENT};
  sdt_probe *probe = NULL;
  sdt_error error;
  if (sdt_define(pool, provider, name, SDT_EVENT, operands, count, &error,
                 &probe) != SDT_OK)
    harness_fail(__FILE__, __LINE__, "%s", error.message);
  return probe;
}

static void fire_shared(void) {
  const uint64_t operands[SDT_MAX_OPERANDS] = {0};
  for (int i = 0; i < THREADS; i++) {
    sdt_probe *probe = __atomic_load_n(&shared[i], __ATOMIC_ACQUIRE);
    if (probe)
      sdt_fire(probe, operands);
  }
}

#ifdef __SANITIZE_ADDRESS__
/* At the fork, another thread may have held a lock of ASan's allocator (GCC 12
 * has no fork handlers for it), so the child neither allocates nor frees. */
static void in_child(struct thread *self) {
  (void)self;
  fire_shared();
  _exit(harness_failed());
}
#else
static void in_child(struct thread *self) {
  sdt_probe *probe = define("child", "own", 3);
  const uint64_t operands[SDT_MAX_OPERANDS] = {0};
  fire_shared();
  sdt_fire(probe, operands);
  _exit(harness_failed() || sdt_watched(probe) ||
        (self->seed % 4 == 0 && reader_count(getpid(), "child", "own") != 1));
}
#endif

static void fork_one(struct thread *self) {
  pid_t child = fork();
  if (child == 0)
    in_child(self);
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
    harness_fail(__FILE__, __LINE__, "child: status %d", status);
}

static void define_one(struct thread *self) {
  char provider[16], name[32];
  snprintf(provider, sizeof(provider), "thread%d", self->number);
  snprintf(name, sizeof(name), "probe%lu", self->defined++);
  sdt_probe *probe = define(provider, name, rand_r(&self->seed) % 13);
  __atomic_store_n(&shared[self->number], probe, __ATOMIC_RELEASE);
}

static void fire_one(struct thread *self) {
  const uint64_t operands[SDT_MAX_OPERANDS] = {1, 2, 3};
  sdt_probe *probe = __atomic_load_n(
      &shared[rand_r(&self->seed) % THREADS], __ATOMIC_ACQUIRE);
  if (!probe)
    return;
  if (sdt_watched(probe) && sdt_traced(probe))
    harness_fail(__FILE__, __LINE__, "traced by nobody");
  sdt_fire(probe, operands);
}

static void toggle_one(struct thread *self) {
  sdt_probe *probe = shared[self->number];
  if (!probe)
    return;
  sdt_probe_disable(probe);
  sdt_watch_always(probe, 1);
  sdt_watch_always(probe, 0);
  sdt_probe_enable(probe);
}

static void *hostile(void *argument) {
  struct thread *self = argument;
  for (unsigned long i = 0; i < rounds && !harness_failed(); i++) {
    unsigned what = rand_r(&self->seed) % 1000;
    if (what < 3)
      fork_one(self);
    else if (what < 200)
      define_one(self);
    else if (what < 250)
      toggle_one(self);
    else
      fire_one(self);
  }
  return NULL;
}

static int start(struct thread *threads, void *(*run)(void *)) {
  unsigned seed = harness_seed();
  /* Reading images needs a larger stack than some C libraries provide. */
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  for (int i = 0; i < THREADS; i++) {
    threads[i] = (struct thread){.number = i, .seed = seed + (unsigned)i};
    if (pthread_create(&threads[i].id, &attributes, run, &threads[i]) != 0)
      return -1;
  }
  pthread_attr_destroy(&attributes);
  return 0;
}

/* Each definition after a fork uses a descriptor. */
static void raise_descriptor_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static void all_at_once(void) {
  struct thread threads[THREADS];
  raise_descriptor_limit();
  unsigned long defined = 0;
  rounds = harness_count(harness_instrumented() ? 4000 : 20000);
  memset(shared, 0, sizeof(shared));
  pool = sdt_pool_create();
  CHECK_EQ(start(threads, hostile), 0);
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i].id, NULL);
    defined += threads[i].defined;
  }
  if (harness_failed())
    return;
  sdt_pool_stats stats;
  sdt_pool_stat(pool, &stats);
  CHECK_EQ(stats.probes, defined);
  CHECK_EQ(reader_descriptors(getpid()) >= stats.images, 1);
  for (int i = 0; i < THREADS; i++)
    CHECK(!shared[i] || shared[i]->watch == shared[i]->site);
  sdt_pool_destroy(pool);
}

/* ---------------------------------------------- readers while it changes */

static int stop;

static void *define_many(void *unused) {
  (void)unused;
  char name[32];
  for (unsigned long i = 0; i < 900 && !harness_failed(); i++) {
    snprintf(name, sizeof(name), "probe%lu", i);
    define("shop", name, i % 13);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  return NULL;
}

/* Read repeatedly: every view is consistent, and never smaller than before. */
static unsigned long watch(const char *path) {
  unsigned long reads = 0;
  size_t seen = 0;
  for (int last = 0; !last && !harness_failed(); reads++) {
    last = __atomic_load_n(&stop, __ATOMIC_ACQUIRE);
    struct reader reader;
    if (reader_init_path(&reader, path) != 0)
      harness_fail(__FILE__, __LINE__, "a torn image");
    if (reader.count < seen || reader.rbtrace_notes < reader.count)
      harness_fail(__FILE__, __LINE__, "%zu probes after %zu, %zu described",
                   reader.count, seen, reader.rbtrace_notes);
    seen = reader.count;
    for (size_t i = 0; i < reader.count && !harness_failed(); i++)
      if (!reader.probes[i].described)
        harness_fail(__FILE__, __LINE__, "a probe without its note");
    reader_deinit(&reader);
  }
  return reads;
}

static void read_while_defined(void) {
  unsigned long passes = harness_count(100), reads = 0;
  for (unsigned long i = 0; i < passes && !harness_failed(); i++) {
    stop = 0;
    pool = sdt_pool_create();
    CHECK(define("shop", "first", 0));
    char paths[MAX_IMAGES][64];
    CHECK_EQ(reader_images(getpid(), paths), 1);
    pthread_t definer;
    CHECK_EQ(pthread_create(&definer, NULL, define_many, NULL), 0);
    reads += watch(paths[0]);
    pthread_join(definer, NULL);
    sdt_pool_destroy(pool);
  }
  printf("  %lu reads\n", reads);
}

const struct test thread_tests[] = {
    {"defining, firing, toggling and forking at once", all_at_once},
    {"readers see whole notes while probes are defined", read_while_defined},
    {NULL, NULL},
};
