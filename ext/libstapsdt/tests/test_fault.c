/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "patch.h"
#include "reader.h"

/* The linker redirects the library's allocations to these (-Wl,--wrap). */
static long allocations_left = -1;

static int allowed(void) {
  if (allocations_left < 0)
    return 1;
  if (allocations_left == 0)
    return 0;
  allocations_left--;
  return 1;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t size) {
  return allowed() ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size) {
  return allowed() ? __real_calloc(count, size) : NULL;
}

char *__wrap_strdup(const char *text) {
  return allowed() ? __real_strdup(text) : NULL;
}

static int define(sdt_pool *pool, sdt_error *error) {
  sdt_probe *probe;
  return sdt_define(pool, "shop", "sold", SDT_EVENT, NULL, 0, error, &probe);
}

static void no_memory(void) {
  size_t before = reader_descriptors(getpid());
  int tries = 0;
  for (int done = 0; !done; tries++) {
    allocations_left = tries;
    sdt_pool *pool = sdt_pool_create();
    sdt_error error = {SDT_OK, ""};
    int status = pool ? define(pool, &error) : SDT_ENOMEM;
    allocations_left = -1;
    CHECK(status == SDT_OK || status == SDT_ENOMEM);
    CHECK(!pool || (int)error.status == status);
    done = status == SDT_OK;
    sdt_pool_destroy(pool);
    CHECK_EQ(reader_descriptors(getpid()), before);
  }
  CHECK(tries > 3);
}

static void no_memory_original(void) {
  for (int tries = 0, done = 0; !done; tries++) {
    allocations_left = tries;
    SDTProvider_t *provider = providerInit("shop");
    SDTProbe_t *probe = provider ? providerAddProbe(provider, "sold", 1, int64)
                                 : NULL;
    done = probe && providerLoad(provider) == 0;
    allocations_left = -1;
    CHECK(done || !provider || provider->error);
    CHECK(done || !probe || !probe->_fire);
    providerDestroy(provider);
  }
}

static int lowest_free(void) {
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(fd);
  return fd;
}

static int limit_descriptors(int count) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return -1;
  limit.rlim_cur = (rlim_t)count;
  return setrlimit(RLIMIT_NOFILE, &limit);
}

static void no_descriptors_body(void) {
  sdt_pool *pool = sdt_pool_create();
  struct rlimit limit;
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  CHECK_EQ(limit_descriptors(lowest_free()), 0);
  sdt_error error;
  CHECK_EQ(define(pool, &error), SDT_EIMAGE);
  char expected[SDT_MESSAGE_SIZE];
  snprintf(expected, sizeof(expected),
           "the probe image could not be created: memfd_create: %s",
           strerror(EMFILE));
  CHECK_STR(error.message, expected);
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  CHECK_EQ(define(pool, &error), SDT_OK);
  CHECK_EQ(reader_count(getpid(), "shop", "sold"), 1);
  sdt_pool_destroy(pool);
}

static void no_descriptors(void) { harness_in_child(no_descriptors_body); }

/* The loader needs a second descriptor; without it, we map the image. */
static void last_descriptor_body(void) {
  sdt_pool *pool = sdt_pool_create();
  int last = lowest_free();
  struct rlimit limit;
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  CHECK_EQ(limit_descriptors(last + 1), 0);
  sdt_probe *probe;
  CHECK_EQ(sdt_define(pool, "shop", "sold", SDT_EVENT, NULL, 0, NULL, &probe),
           SDT_OK);
  CHECK(!sdt_watched(probe));
  sdt_fire(probe, NULL);
  CHECK_EQ(patch_record(probe), 0);
  patch_calls = 0;
  sdt_fire(probe, NULL);
  CHECK_EQ(patch_calls, 1);
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  CHECK_EQ(reader_count(getpid(), "shop", "sold"), 1);
  sdt_pool_destroy(pool);
}

static void last_descriptor(void) { harness_in_child(last_descriptor_body); }

static int own_mounts(void) {
  return unshare(CLONE_NEWNS) == 0 &&
                 mount("", "/", "", MS_REC | MS_PRIVATE, NULL) == 0
             ? 0
             : -1;
}

static void no_proc_body(void) {
  sdt_pool *pool = sdt_pool_create();
  if (own_mounts() != 0 || mount("none", "/proc", "tmpfs", 0, "") != 0) {
    harness_skip("needs to mount");
    return;
  }
  sdt_probe *probe;
  CHECK_EQ(sdt_define(pool, "shop", "sold", SDT_EVENT, NULL, 0, NULL, &probe),
           SDT_OK);
  sdt_fire(probe, NULL);
  CHECK_EQ(patch_breakpoint(probe), 0);
  CHECK(sdt_watched(probe));
  CHECK_EQ(umount2("/proc", MNT_DETACH), 0);
  CHECK_EQ(reader_count(getpid(), "shop", "sold"), 1);
  sdt_pool_destroy(pool);
}

static void no_proc(void) { harness_in_child(no_proc_body); }

static void file_limit_body(void) {
  const struct rlimit limit = {4096, 4096};
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  sdt_pool *pool = sdt_pool_create();
  sdt_error error;
  CHECK_EQ(define(pool, &error), SDT_EIMAGE);
  CHECK_STR(error.message, "the probe image could not be created: "
                           "RLIMIT_FSIZE: File too large");
  sdt_pool_destroy(pool);
}

static void file_limit(void) {
  if (harness_instrumented())
    harness_skip("instruments write files of their own");
  else
    harness_in_child(file_limit_body);
}

/* ------------------------------------------------- images kept as files */

static char directory[] = "/tmp/sdt-test-XXXXXX";

static size_t files_in(const char *path, char *ret, size_t size) {
  size_t count = 0;
  DIR *open = opendir(path);
  for (struct dirent *entry; open && (entry = readdir(open));)
    if (entry->d_name[0] != '.') {
      count++;
      if (ret)
        snprintf(ret, size, "%s/%s", path, entry->d_name);
    }
  if (open)
    closedir(open);
  return count;
}

static void kept_as_file_body(void) {
  size_t before = reader_descriptors(getpid());
  setenv("TRACEPOINT_IMAGE_DIR", directory, 1);
  sdt_pool *pool = sdt_pool_create();
  CHECK_EQ(define(pool, NULL), SDT_OK);
  char path[512];
  CHECK_EQ(files_in(directory, path, sizeof(path)), 1);
  CHECK_EQ(reader_descriptors(getpid()), before);
  struct stat stat_;
  CHECK_EQ(stat(path, &stat_), 0);
  CHECK_EQ(stat_.st_mode & 0777, 0644);
  CHECK(stat_.st_blocks * 512 >= stat_.st_size);

  CHECK_EQ(define(pool, NULL), SDT_OK);
  struct reader reader;
  CHECK_EQ(reader_init_path(&reader, path), 0);
  CHECK_EQ(reader.count, 2);
  reader_deinit(&reader);
  sdt_pool_destroy(pool);
  CHECK_EQ(files_in(directory, NULL, 0), 0);
}

static void kept_as_file(void) {
  CHECK(mkdtemp(directory));
  harness_in_child(kept_as_file_body);
  rmdir(directory);
  strcpy(strrchr(directory, '-'), "-XXXXXX");
}

/* A child's exit keeps the parent's files. The parent's exit removes them,
 * whatever its directory is by then. */
static void removed_at_exit(void) {
  CHECK(mkdtemp(directory));
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    if (chdir(directory) != 0)
      _exit(1);
    setenv("TRACEPOINT_IMAGE_DIR", ".", 1);
    sdt_pool *pool = sdt_pool_create();
    if (define(pool, NULL) != SDT_OK)
      _exit(1);
    pid_t grandchild = fork();
    if (grandchild == 0)
      exit(define(pool, NULL));
    int status;
    waitpid(grandchild, &status, 0);
    if (status != 0 || files_in(directory, NULL, 0) != 1 || chdir("/") != 0)
      _exit(1);
    exit(0);
  }
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(files_in(directory, NULL, 0), 0);
  rmdir(directory);
  strcpy(strrchr(directory, '-'), "-XXXXXX");
}

static void bad_directory_body(void) {
  sdt_error error;
  static const char *const bad[] = {"/nonexistent", "/dev/null"};
  static const char *const why[] = {"No such file or directory",
                                    "Not a directory"};
  for (int i = 0; i < 2; i++) {
    setenv("TRACEPOINT_IMAGE_DIR", bad[i], 1);
    sdt_pool *pool = sdt_pool_create();
    CHECK(pool);
    CHECK_EQ(define(pool, &error), SDT_EIMAGE);
    CHECK(strstr(error.message, bad[i]));
    CHECK(strstr(error.message, why[i]));
    sdt_pool_destroy(pool);
  }
  setenv("TRACEPOINT_IMAGE_DIR", "", 1);
  sdt_pool *pool = sdt_pool_create();
  CHECK_EQ(define(pool, &error), SDT_OK);
  sdt_pool_destroy(pool);
}

static void bad_directory(void) { harness_in_child(bad_directory_body); }

static void full_disk_body(void) {
  if (own_mounts() != 0 ||
      mount("none", directory, "tmpfs", 0, "size=64k") != 0) {
    harness_skip("needs to mount");
    return;
  }
  setenv("TRACEPOINT_IMAGE_DIR", directory, 1);
  sdt_pool *pool = sdt_pool_create();
  sdt_error error;
  CHECK_EQ(define(pool, &error), SDT_EIMAGE);
  CHECK(strstr(error.message, "No space left on device"));
  CHECK_EQ(files_in(directory, NULL, 0), 0);
  sdt_pool_destroy(pool);
}

static void no_execution_body(void) {
  if (own_mounts() != 0 ||
      mount("none", directory, "tmpfs", MS_NOEXEC, "size=8m") != 0) {
    harness_skip("needs to mount");
    return;
  }
  setenv("TRACEPOINT_IMAGE_DIR", directory, 1);
  sdt_pool *pool = sdt_pool_create();
  sdt_error error;
  CHECK_EQ(define(pool, &error), SDT_ELOAD);
  CHECK_STR(error.message,
            "the probe image could not be loaded: mmap: Operation not permitted");
  CHECK_EQ(files_in(directory, NULL, 0), 0);
  sdt_pool_destroy(pool);
}

static void in_directory(void (*body)(void)) {
  CHECK(mkdtemp(directory));
  harness_in_child(body);
  rmdir(directory);
  strcpy(strrchr(directory, '-'), "-XXXXXX");
}

static void full_disk(void) { in_directory(full_disk_body); }
static void no_execution(void) { in_directory(no_execution_body); }

const struct test fault_tests[] = {
    {"no memory, at every allocation", no_memory},
    {"no memory, in the original interface", no_memory_original},
    {"no descriptor left", no_descriptors},
    {"one descriptor left", last_descriptor},
    {"/proc is not mounted", no_proc},
    {"a limit on file sizes", file_limit},
    {"images kept as files", kept_as_file},
    {"files are removed at exit", removed_at_exit},
    {"a directory that is none", bad_directory},
    {"a full disk", full_disk},
    {"a directory that nothing may be run from", no_execution},
    {NULL, NULL},
};
