/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf_image.h"
#include "harness.h"
#include "patch.h"
#include "reader.h"

static const sdt_operand three[] = {
    {"id", SDT_INTEGER, SDT_ARGUMENT},
    {"sku", SDT_STRING, SDT_ARGUMENT},
    {"ok", SDT_BOOL, SDT_ARGUMENT},
};

static sdt_probe *define(sdt_pool *pool, const char *name, size_t count) {
  sdt_operand operands[SDT_MAX_OPERANDS];
  for (size_t i = 0; i < SDT_MAX_OPERANDS; i++)
    operands[i] = (sdt_operand){NULL, SDT_INTEGER, SDT_ARGUMENT};
  sdt_error error;
  sdt_probe *probe = NULL;
  if (sdt_define(pool, "shop", name, SDT_EVENT, operands, count, &error,
                 &probe) != SDT_OK)
    printf("  %s\n", error.message);
  return probe;
}

static void visible_at_once(void) {
  size_t before = reader_descriptors(getpid());
  sdt_pool *pool = sdt_pool_create();
  CHECK(pool);
  CHECK_EQ(reader_descriptors(getpid()), before);
  sdt_error error;
  sdt_probe *probe;
  CHECK_EQ(sdt_define(pool, "shop", "sold", SDT_SPAN_BEGIN, three, 3, &error,
                      &probe),
           SDT_OK);
  CHECK_EQ(reader_descriptors(getpid()), before + 1);

  char paths[MAX_IMAGES][64];
  CHECK_EQ(reader_images(getpid(), paths), 1);
  struct reader reader;
  CHECK_EQ(reader_init_path(&reader, paths[0]), 0);
  CHECK_EQ(reader.count, 1);
  const struct read_probe *read = reader_find(&reader, "shop", "sold");
  CHECK(read && read->described);
  CHECK_EQ(read->version, 1);
  CHECK_EQ(read->role, SDT_SPAN_BEGIN);
  CHECK_EQ(read->count, 3);
  CHECK_EQ(read->semaphore, 0);
  CHECK_STR(read->operands[1].name, "sku");
  CHECK_EQ(read->operands[1].type, SDT_STRING);
#if defined(__x86_64__)
  CHECK_STR(read->arguments, "-8@%rdi 8@%rsi 8@%rdx");
#endif
  CHECK_EQ(read->base, reader_section(&reader, ".stapsdt.base")->sh_addr);
  reader_deinit(&reader);

  CHECK(define(pool, "later", 0));
  CHECK_EQ(reader_count(getpid(), "shop", "later"), 1);
  CHECK_EQ(reader_descriptors(getpid()), before + 1);
  sdt_pool_destroy(pool);
  CHECK_EQ(reader_descriptors(getpid()), before);
}

static void one_name_twice(void) {
  sdt_pool *pool = sdt_pool_create();
  sdt_probe *first = define(pool, "sold", 1), *second = define(pool, "sold", 1);
  CHECK(first && second && first->site != second->site);
  CHECK_EQ(reader_count(getpid(), "shop", "sold"), 2);
  sdt_pool_destroy(pool);
}

static void idle_probe(void) {
  sdt_pool *pool = sdt_pool_create();
  for (size_t count = 0; count <= SDT_MAX_OPERANDS; count++) {
    const uint64_t operands[SDT_MAX_OPERANDS] = {0};
    char name[16];
    snprintf(name, sizeof(name), "p%zu", count);
    sdt_probe *probe = define(pool, name, count);
    CHECK(probe);
    CHECK_EQ(probe->count, count);
    CHECK(!sdt_watched(probe));
    CHECK(!sdt_traced(probe));
    sdt_fire(probe, operands);
  }
  sdt_pool_destroy(pool);
}

static void operands_land(void) {
  sdt_pool *pool = sdt_pool_create();
  for (size_t count = 0; count <= SDT_MAX_OPERANDS; count++) {
    sdt_probe *probe = define(pool, "p", count);
    CHECK(probe && patch_record(probe) == 0);
    /* Allocate exactly the probe's count, so a sanitizer sees reads beyond. */
    uint64_t *operands = malloc(count * sizeof(*operands) + 1);
    for (size_t i = 0; i < count; i++)
      operands[i] = UINT64_C(0xfedcba9876543210) + i;
    patch_calls = 0;
    sdt_fire(probe, operands);
    CHECK_EQ(patch_calls, 1);
    for (size_t i = 0; i < count; i++)
      CHECK_EQ(patch_recorded[i], operands[i]);
    free(operands);
    CHECK_EQ(patch_restore(probe), 0);
  }
  sdt_pool_destroy(pool);
}

static void traced_probe(void) {
  sdt_pool *pool = sdt_pool_create();
  sdt_probe *probe = define(pool, "sold", 1), *other = define(pool, "other", 1);
  CHECK(probe && other);
  CHECK_EQ(patch_breakpoint(probe), 0);
  CHECK(sdt_watched(probe) && sdt_traced(probe));
  CHECK(!sdt_watched(other) && !sdt_traced(other));

  sdt_probe_disable(probe);
  CHECK(probe->disabled && !sdt_watched(probe) && !sdt_traced(probe));
  CHECK_EQ(reader_count(getpid(), "shop", "sold"), 1);
  sdt_probe_enable(probe);
  CHECK(!probe->disabled && sdt_watched(probe) && sdt_traced(probe));

  CHECK_EQ(patch_restore(probe), 0);
  CHECK(!sdt_watched(probe) && !sdt_traced(probe));
  sdt_pool_destroy(pool);
}

static void watched_always(void) {
  sdt_pool *pool = sdt_pool_create();
  sdt_probe *probe = define(pool, "sold", 1);
  CHECK(probe);
  sdt_watch_always(probe, 1);
  CHECK(sdt_watched(probe) && !sdt_traced(probe));
  sdt_probe_disable(probe);
  CHECK(sdt_watched(probe) && !sdt_traced(probe));
  sdt_watch_always(probe, 0);
  CHECK(!sdt_watched(probe));
  sdt_probe_enable(probe);
  CHECK(!sdt_watched(probe) && probe->watch == probe->site);
  sdt_pool_destroy(pool);
}

/* Defining another probe keeps the patches of the existing mapping. */
static void defined_beside_a_traced_one(void) {
  sdt_pool *pool = sdt_pool_create();
  sdt_probe *probe = define(pool, "first", 1);
  CHECK(probe && patch_breakpoint(probe) == 0);
  sdt_probe *later = define(pool, "later", 2);
  CHECK(later && !sdt_watched(later));
  const uint64_t operands[] = {1, 2};
  sdt_fire(later, operands);
  CHECK_EQ(reader_count(getpid(), "shop", "later"), 1);
  CHECK_EQ(patch_breakpoint(later), 0);
  CHECK(sdt_watched(later));
  sdt_pool_destroy(pool);
}

static void images_fill(void) {
  sdt_pool *pool = sdt_pool_create();
  for (int i = 0; i < 1025; i++)
    CHECK(define(pool, "p", 1));
  sdt_pool_stats stats;
  sdt_pool_stat(pool, &stats);
  CHECK_EQ(stats.images, 2);
  CHECK_EQ(stats.probes, 1025);
  CHECK_EQ(reader_count(getpid(), "shop", "p"), 1025);
  sdt_pool_destroy(pool);
}

/* Long names fill the notes before the sites run out. */
static void notes_fill(void) {
  char name[SDT_MAX_NAME + 1];
  memset(name, 'n', SDT_MAX_NAME);
  name[SDT_MAX_NAME] = 0;
  sdt_operand operands[SDT_MAX_OPERANDS];
  for (size_t i = 0; i < SDT_MAX_OPERANDS; i++)
    operands[i] = (sdt_operand){name, SDT_INTEGER, SDT_ARGUMENT};
  sdt_pool *pool = sdt_pool_create();
  for (int i = 0; i < 1000; i++) {
    sdt_probe *probe;
    CHECK_EQ(sdt_define(pool, name, name, SDT_EVENT, operands, SDT_MAX_OPERANDS,
                        NULL, &probe),
             SDT_OK);
  }
  sdt_pool_stats stats;
  sdt_pool_stat(pool, &stats);
  CHECK_EQ(stats.images, 2);
  CHECK_EQ(stats.probes, 1000);
  CHECK_EQ(reader_count(getpid(), name, name), 1000);
  sdt_pool_destroy(pool);
}

static void bad_names(void) {
  char longest[SDT_MAX_NAME + 2];
  memset(longest, 'n', sizeof(longest) - 1);
  longest[SDT_MAX_NAME + 1] = 0;
  const char *const names[] = {NULL, "", "a-b", "a:b", "a b", "\xc3\xa4",
                               "a\n", "%s", longest};
  sdt_pool *pool = sdt_pool_create();
  sdt_error error;
  sdt_probe *probe = NULL;
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    CHECK_EQ(sdt_define(pool, names[i], "p", SDT_EVENT, NULL, 0, &error,
                        &probe),
             SDT_ENAME);
    CHECK_EQ(error.status, SDT_ENAME);
    CHECK_STR(error.message,
              "a name must be 1 to 63 of A-Z a-z 0-9 _: provider");
    CHECK_EQ(sdt_define(pool, "p", names[i], SDT_EVENT, NULL, 0, NULL, &probe),
             SDT_ENAME);
    if (!names[i] || !*names[i])
      continue;
    const sdt_operand operand = {names[i], SDT_INTEGER, SDT_ARGUMENT};
    CHECK_EQ(sdt_define(pool, "p", "p", SDT_EVENT, &operand, 1, NULL, &probe),
             SDT_ENAME);
  }
  CHECK(!probe);
  longest[SDT_MAX_NAME] = 0;
  CHECK_EQ(sdt_define(pool, longest, longest, SDT_EVENT, NULL, 0, NULL, &probe),
           SDT_OK);
  sdt_pool_destroy(pool);
}

static void bad_operands(void) {
  sdt_operand operands[SDT_MAX_OPERANDS + 1];
  for (size_t i = 0; i <= SDT_MAX_OPERANDS; i++)
    operands[i] = three[0];
  sdt_pool *pool = sdt_pool_create();
  sdt_error error;
  sdt_probe *probe = NULL;
#define DEFINE(role, count)                                                    \
  sdt_define(pool, "p", "p", (sdt_probe_role)(role), operands, count, &error,  \
             &probe)
  CHECK_EQ(DEFINE(SDT_EVENT, SDT_MAX_OPERANDS + 1), SDT_EOPERANDS);
  CHECK_STR(error.message, "a probe has at most 12 operands: 13");
  CHECK_EQ(DEFINE(SDT_EVENT, SIZE_MAX), SDT_EOPERANDS);
  CHECK_EQ(sdt_define(pool, "p", "p", SDT_EVENT, NULL, 1, &error, &probe),
           SDT_EOPERANDS);
  CHECK_EQ(DEFINE(3, 1), SDT_ETYPE);
  CHECK_EQ(DEFINE(-1, 1), SDT_ETYPE);
  operands[1].type = (sdt_type)0;
  CHECK_EQ(DEFINE(SDT_EVENT, 2), SDT_ETYPE);
  CHECK_STR(error.message, "unknown operand type or role: operand 1");
  operands[1].type = (sdt_type)7;
  CHECK_EQ(DEFINE(SDT_EVENT, 2), SDT_ETYPE);
  operands[1].type = SDT_FLOAT;
  operands[1].role = (sdt_operand_role)4;
  CHECK_EQ(DEFINE(SDT_EVENT, 2), SDT_ETYPE);
#undef DEFINE
  char method[SDT_MAX_METHOD + 2] = "";
  CHECK_EQ(sdt_define_method(pool, "p", "p", SDT_EVENT, NULL, 0, method, &error,
                             &probe),
           SDT_ENAME);
  memset(method, 'm', sizeof(method) - 1);
  CHECK_EQ(sdt_define_method(pool, "p", "p", SDT_EVENT, NULL, 0, method, &error,
                             &probe),
           SDT_ENAME);
  CHECK(!probe);
  sdt_pool_stats stats;
  sdt_pool_stat(pool, &stats);
  CHECK_EQ(stats.images, 0);
  sdt_pool_destroy(pool);
}

/* Check the type of an operand in this process's only image, and its string. */
static void open_operand(const char *name, size_t index, int type) {
  char paths[MAX_IMAGES][64];
  CHECK_EQ(reader_images(getpid(), paths), 1);
  struct reader reader;
  CHECK_EQ(reader_init_path(&reader, paths[0]), 0);
  const struct read_probe *probe = reader_find(&reader, "shop", name);
  CHECK(probe && index < probe->count);
  CHECK_EQ(probe->operands[index].type, type);
  CHECK_STR(probe->arguments, "-8@%rdi -8@%rsi -8@%rdx");
  reader_deinit(&reader);
}

static void open_operands(void) {
  const sdt_operand operands[] = {{"id", SDT_OPEN, SDT_ARGUMENT},
                                  {NULL, SDT_INTEGER, SDT_ARGUMENT},
                                  {"a_longer_name", SDT_OPEN, SDT_ARGUMENT}};
  sdt_pool *pool = sdt_pool_create();
  sdt_probe *probe, *other;
  CHECK_EQ(sdt_define(pool, "shop", "open", SDT_EVENT, operands, 3, NULL,
                      &probe),
           SDT_OK);
  CHECK_EQ(sdt_define(pool, "shop", "other", SDT_EVENT, operands, 3, NULL,
                      &other),
           SDT_OK);
  CHECK_HELPER(open_operand("open", 2, SDT_OPEN));
  sdt_type type = SDT_OPEN;
  CHECK_EQ(sdt_settle(probe, 2, SDT_STRING, &type), SDT_OK);
  CHECK_EQ(type, SDT_STRING);
  CHECK_EQ(sdt_settle(probe, 2, SDT_FLOAT, &type), SDT_OK);
  CHECK_EQ(type, SDT_STRING);
  CHECK_EQ(sdt_settle(probe, 1, SDT_FLOAT, &type), SDT_OK);
  CHECK_EQ(type, SDT_INTEGER);
  CHECK_EQ(sdt_settle(probe, 3, SDT_FLOAT, &type), SDT_EOPERANDS);
  CHECK_EQ(sdt_settle(probe, 0, SDT_OPEN, &type), SDT_ETYPE);
  CHECK_EQ(sdt_settle(probe, 0, (sdt_type)0, &type), SDT_ETYPE);
  CHECK_HELPER(open_operand("open", 0, SDT_OPEN));
  CHECK_HELPER(open_operand("open", 1, SDT_INTEGER));
  CHECK_HELPER(open_operand("open", 2, SDT_STRING));
  CHECK_HELPER(open_operand("other", 2, SDT_OPEN));
  sdt_pool_destroy(pool);
}

static void messages(void) {
  CHECK_STR(sdt_strerror(SDT_OK), "no error");
  CHECK_STR(sdt_strerror(SDT_EUNSUPPORTED), "this machine has no probe images");
  CHECK_STR(sdt_strerror(-1), "unknown error");
  CHECK_STR(sdt_strerror(1000), "unknown error");
}

/* No other process may change an image or truncate it under a reader. */
static void sealed(void) {
  sdt_pool *pool = sdt_pool_create();
  CHECK(define(pool, "sold", 1));
  char paths[MAX_IMAGES][64];
  CHECK_EQ(reader_images(getpid(), paths), 1);
  int fd = open(paths[0], O_RDWR | O_CLOEXEC);
  CHECK(fd >= 0);
  CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  int seals = fcntl(fd, F_GET_SEALS);
  CHECK(seals & F_SEAL_SEAL);
  CHECK(ftruncate(fd, 0) == -1);
  if (seals & F_SEAL_FUTURE_WRITE) {
    CHECK(pwrite(fd, "x", 1, 0) == -1);
    CHECK(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) ==
          MAP_FAILED);
  }
  close(fd);
  CHECK(define(pool, "later", 1));
  CHECK_EQ(reader_count(getpid(), "shop", "later"), 1);
  sdt_pool_destroy(pool);
}

static void closed_on_exec(void) {
  sdt_pool *pool = sdt_pool_create();
  CHECK(define(pool, "sold", 1));
  char paths[MAX_IMAGES][64];
  CHECK_EQ(reader_images(getpid(), paths), 1);
  CHECK(fcntl(atoi(strrchr(paths[0], '/') + 1), F_GETFD) & FD_CLOEXEC);
  sdt_pool_destroy(pool);
}

static int image_number(void) {
  char paths[MAX_IMAGES][64];
  return reader_images(getpid(), paths) ? atoi(strrchr(paths[0], '/') + 1) : -1;
}

/* A program that daemonizes closes unknown descriptors and opens others. */
static void descriptor_reused(void) {
  sdt_pool *pool = sdt_pool_create();
  CHECK(define(pool, "first", 1));
  int number = image_number();
  CHECK(number >= 0);
  close(number);
  int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK_EQ(file, number);
  sdt_probe *probe = define(pool, "second", 1);
  CHECK(probe && !sdt_watched(probe));

  /* Another image with the old one's number is not confused with it. */
  close(file);
  sdt_pool *other = sdt_pool_create();
  sdt_probe *third = define(other, "third", 1);
  CHECK(third && third->site != probe->site);
  CHECK_EQ(image_number(), number);
  CHECK_EQ(reader_count(getpid(), "shop", "third"), 1);
  sdt_pool_destroy(pool);
  CHECK_EQ(reader_count(getpid(), "shop", "third"), 1);
  sdt_pool_destroy(other);
}

static void many_pools(void) {
  unsigned long count = harness_count(100000);
  size_t before = reader_descriptors(getpid());
  for (unsigned long i = 0; i < count; i++) {
    sdt_pool *pool = sdt_pool_create();
    CHECK(pool && define(pool, "p", 1));
    sdt_pool_destroy(pool);
  }
  CHECK_EQ(reader_descriptors(getpid()), before);
}

const struct test pool_tests[] = {
    {"a probe is visible when it is defined", visible_at_once},
    {"one name twice makes two sites", one_name_twice},
    {"firing an idle probe does nothing", idle_probe},
    {"operands land where a C function finds them", operands_land},
    {"a patched site is seen", traced_probe},
    {"a probe watched always", watched_always},
    {"a probe defined beside a traced one", defined_beside_a_traced_one},
    {"a full image is followed by another", images_fill},
    {"an image whose notes are full is, too", notes_fill},
    {"bad names", bad_names},
    {"bad operands and roles", bad_operands},
    {"an operand's type that is told later", open_operands},
    {"messages", messages},
    {"an image is sealed", sealed},
    {"an image is not inherited by another program", closed_on_exec},
    {"a descriptor that was closed and used again", descriptor_reused},
    {"many images, one after another", many_pools},
    {NULL, NULL},
};
