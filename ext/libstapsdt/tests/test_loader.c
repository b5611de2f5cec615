/* Code that holds the loader's lock may define probes and fork. */
/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "reader.h"

static sdt_pool *ours, *theirs;
static void (*in_constructor)(void);
static int constructed;

/* The loaded library finds this function in this program. */
void harness_constructor(void);
__attribute__((visibility("default"))) void harness_constructor(void) {
  constructed = 1;
  in_constructor();
}

static sdt_probe *define(sdt_pool *pool, const char *name) {
  sdt_probe *probe = NULL;
  (void)sdt_define(pool, "shop", name, SDT_EVENT, NULL, 0, NULL, &probe);
  return probe;
}

static void *define_theirs(void *unused) {
  (void)unused;
  return define(theirs, "theirs");
}

static void *destroy_theirs(void *unused) {
  (void)unused;
  sdt_pool_destroy(theirs);
  return NULL;
}

/* Start a thread that will wait for the loader, and give it time to do so. */
static pthread_t start(void *(*run)(void *)) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, run, NULL) != 0)
    harness_fail(__FILE__, __LINE__, "pthread_create");
  usleep(100000);
  return thread;
}

static pthread_t other;

static void define_while_another_loads(void) {
  other = start(define_theirs);
  CHECK(define(ours, "ours"));
}

static void define_while_another_unloads(void) {
  other = start(destroy_theirs);
  CHECK(define(ours, "ours"));
}

static void fork_while_another_loads(void) {
  other = start(define_theirs);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0)
    _exit(reader_count(getpid(), "shop", "theirs") != 0 ||
          reader_count(getpid(), "shop", "before") != 1);
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

static void load_library(void) {
  char path[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 32);
  CHECK(length > 0);
  while (path[length - 1] != '/')
    length--;
  strcpy(path + length, "constructor.so");
  constructed = 0;
  void *handle = dlopen(path, RTLD_NOW);
  if (!handle)
    harness_fail(__FILE__, __LINE__, "%s", dlerror());
  CHECK_EQ(constructed, 1);
}

/* Run in a child: a deadlock ends with it, and it loads the library once. */
static void run(void) {
  alarm(20);
  ours = sdt_pool_create();
  theirs = sdt_pool_create();
  if (in_constructor == define_while_another_unloads)
    CHECK(define(theirs, "theirs"));
  CHECK_HELPER(load_library());
  void *probe;
  CHECK_EQ(pthread_join(other, &probe), 0);
  CHECK_EQ(reader_count(getpid(), "shop", "theirs"), probe != NULL);
  sdt_pool_destroy(ours);
  if (probe)
    sdt_pool_destroy(theirs);
}

static void defining(void) {
  in_constructor = define_while_another_loads;
  harness_in_child(run);
}

static void run_unloading(void) {
  in_constructor = define_while_another_unloads;
  run();
}

static void unloading(void) { harness_in_child(run_unloading); }

static void run_forking(void) {
  CHECK(define(sdt_pool_create(), "before"));
  in_constructor = fork_while_another_loads;
  run();
}

static void forking(void) {
  if (harness_instrumented())
    harness_skip("the child cannot free what another thread was making");
  else
    harness_in_child(run_forking);
}

/* ------------------------------------------------- many threads, one image */

#define THREADS 16

static pthread_barrier_t together;

static void *define_one(void *name) {
  pthread_barrier_wait(&together);
  return define(ours, name);
}

/* If another thread created an image first, use it and free our own. */
static void first_probes_at_once(void) {
  for (unsigned long i = 0; i < harness_count(400); i++) {
    pthread_t threads[THREADS];
    int failures = 0;
    ours = sdt_pool_create();
    pthread_barrier_init(&together, NULL, THREADS);
    for (int t = 0; t < THREADS; t++)
      CHECK_EQ(pthread_create(&threads[t], NULL, define_one, "one"), 0);
    for (int t = 0; t < THREADS; t++) {
      void *probe;
      CHECK_EQ(pthread_join(threads[t], &probe), 0);
      failures += !probe;
    }
    pthread_barrier_destroy(&together);
    CHECK_EQ(failures, 0);
    sdt_pool_stats stats;
    sdt_pool_stat(ours, &stats);
    CHECK_EQ(stats.images, 1);
    CHECK_EQ(stats.probes, THREADS);
    sdt_pool_destroy(ours);
  }
}

const struct test loader_tests[] = {
    {"a constructor defines while another thread loads", defining},
    {"a constructor defines while another thread unloads", unloading},
    {"a constructor forks while another thread loads", forking},
    {"sixteen threads make the first image", first_probes_at_once},
    {NULL, NULL},
};
