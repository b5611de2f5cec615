/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <link.h>
#include <spawn.h>
#include <stdlib.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "patch.h"
#include "reader.h"

static sdt_pool *pool;

static sdt_probe *define(const char *name) {
  sdt_probe *probe = NULL;
  (void)sdt_define(pool, "shop", name, SDT_EVENT, NULL, 0, NULL, &probe);
  return probe;
}

static void both_sides(void) {
  pool = sdt_pool_create();
  sdt_probe *before = define("before");
  CHECK(before);
  int to_child[2], to_parent[2];
  CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    sdt_probe *own = define("in_child");
    int good = own && !sdt_watched(own) && !sdt_watched(before);
    sdt_fire(before, NULL);
    char byte = 0;
    if (write(to_parent[1], &byte, 1) != 1 || read(to_child[0], &byte, 1) != 1)
      _exit(1);
    good = good && reader_count(getpid(), "shop", "in_parent") == 0 &&
           reader_count(getpid(), "shop", "in_child") == 1 &&
           reader_count(getpid(), "shop", "before") == 1;
    sdt_pool_destroy(pool);
    _exit(!good);
  }
  char byte = 0;
  CHECK_EQ(read(to_parent[0], &byte, 1), 1);
  CHECK(define("in_parent"));
  CHECK_EQ(reader_count(getpid(), "shop", "in_child"), 0);
  CHECK_EQ(reader_count(getpid(), "shop", "in_parent"), 1);
  CHECK_EQ(reader_count(child, "shop", "in_child"), 1);
  CHECK_EQ(reader_count(child, "shop", "in_parent"), 0);
  CHECK_EQ(reader_count(child, "shop", "before"), 1);
  CHECK_EQ(write(to_child[1], &byte, 1), 1);
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  close(to_child[0]), close(to_child[1]);
  close(to_parent[0]), close(to_parent[1]);
  sdt_pool_destroy(pool);
}

/* Both processes share the note, so a type settled by one holds for the other. */
static void open_operand(void) {
  const sdt_operand operand = {NULL, SDT_OPEN, SDT_ARGUMENT};
  pool = sdt_pool_create();
  sdt_probe *probe = NULL;
  CHECK_EQ(sdt_define(pool, "shop", "open", SDT_EVENT, &operand, 1, NULL,
                      &probe),
           SDT_OK);
  sdt_type type = SDT_OPEN;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0)
    _exit(sdt_settle(probe, 0, SDT_FLOAT, &type) != SDT_OK ||
          type != SDT_FLOAT);
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(sdt_settle(probe, 0, SDT_STRING, &type), SDT_OK);
  CHECK_EQ(type, SDT_FLOAT);
  sdt_pool_destroy(pool);
}

static void one_image_a_fork(void) {
  pool = sdt_pool_create();
  CHECK(define("before"));
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    if (child == 0)
      _exit(0);
    CHECK_EQ(waitpid(child, NULL, 0), child);
  }
  CHECK(define("one") && define("two"));
  sdt_pool_stats stats;
  sdt_pool_stat(pool, &stats);
  CHECK_EQ(stats.images, 2);
  sdt_pool_destroy(pool);
}

/* Executed programs share nothing: no new image is needed. */
static void spawn(void) {
  pool = sdt_pool_create();
  CHECK(define("before"));
  char *arguments[] = {"true", NULL};
  pid_t child;
  CHECK_EQ(posix_spawnp(&child, "true", NULL, NULL, arguments, environ), 0);
  CHECK_EQ(waitpid(child, NULL, 0), child);
  CHECK(define("after"));
  sdt_pool_stats stats;
  sdt_pool_stat(pool, &stats);
  CHECK_EQ(stats.images, 1);
  sdt_pool_destroy(pool);
}

static int patched_in(const sdt_probe *probe) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0)
    _exit(patch_record(probe) != 0 || !sdt_watched(probe) ? 2
          : (sdt_fire(probe, NULL), patch_calls == 1)     ? 0
                                                          : 1);
  int status;
  return waitpid(child, &status, 0) == child && status == 0;
}

static void patched_in_the_child_only(void) {
  pool = sdt_pool_create();
  sdt_probe *probe = define("before");
  CHECK(probe);
  patch_calls = 0;
  CHECK(patched_in(probe));
  CHECK(!sdt_watched(probe));
  sdt_pool_destroy(pool);
}

/* Debuggers open the loader's name of an object. */
static int names_image_of(struct dl_phdr_info *info, size_t size, void *pid) {
  (void)size;
  long named;
  if (sscanf(info->dlpi_name, "/proc/%*[/]%ld/fd/", &named) == 1)
    return named == *(pid_t *)pid ? 1 : -1;
  return 0;
}

static int named_after(pid_t pid) {
  return dl_iterate_phdr(names_image_of, &pid);
}

static void loader_names(void) {
  /* Images of earlier tests would be listed as well. */
  if (!HARNESS_UNLOADS) {
    harness_skip("this C library unloads nothing");
    return;
  }
  pool = sdt_pool_create();
  CHECK(define("before"));
  CHECK_EQ(named_after(getpid()), 1);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    if (named_after(getpid()) != 1)
      _exit(1);
    pid_t grandchild = fork();
    if (grandchild == 0)
      _exit(named_after(getpid()) != 1);
    int status;
    waitpid(grandchild, &status, 0);
    sdt_pool_destroy(pool);
    _exit(status != 0 || named_after(getpid()) != 0);
  }
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(named_after(getpid()), 1);
  sdt_pool_destroy(pool);
  CHECK_EQ(named_after(getpid()), 0);
}

/* The pid reveals a fork that runs no handlers. */
static void bare_clone(void) {
  if (harness_instrumented()) {
    harness_skip("instruments need the C library's fork");
    return;
  }
  pool = sdt_pool_create();
  CHECK(define("before"));
  fflush(stdout);
  long child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (child == 0) {
    sdt_pool_stats stats;
    int good = define("in_child") != NULL;
    sdt_pool_stat(pool, &stats);
    _exit(!(good && stats.images == 2));
  }
  int status;
  CHECK_EQ(waitpid((pid_t)child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(reader_count(getpid(), "shop", "in_child"), 0);
  sdt_pool_destroy(pool);
}

const struct test fork_tests[] = {
    {"both sides go on defining", both_sides},
    {"an operand's type is one for both", open_operand},
    {"one more image, however many forks", one_image_a_fork},
    {"a started program costs no image", spawn},
    {"a child's patch is its own", patched_in_the_child_only},
    {"the loader's names follow the child", loader_names},
    {"a bare clone", bare_clone},
    {NULL, NULL},
};
