/*
 * A program for the benchmarks to trace: it fires probes in a tight loop and
 * tells what a hit costs it. One command a line on stdin, one answer a line.
 *
 *   fire NAME TIMES    ns a hit, of this thread's processor time
 *   pair TIMES         `begin` and `end` in turn: ns for both
 *   spans SEED TIMES   `span__end` with TIMES durations of a generator
 *   define COUNT       so many probes more: ns each, images, bytes of memory
 *   where              nothing: "ok"
 *
 * SPDX-License-Identifier: MIT
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libstapsdt.h"

static sdt_pool *pool;
static sdt_probe *two, *twelve, *begins, *ends, *span_ends;

static double cpu_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

static double wall_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

static sdt_probe *define(const char *name, sdt_probe_role role,
                         const sdt_operand *operands, size_t count) {
  sdt_error error;
  sdt_probe *probe;
  if (sdt_define(pool, "bench", name, role, operands, count, &error, &probe) !=
      SDT_OK) {
    fprintf(stderr, "%s\n", error.message);
    exit(1);
  }
  return probe;
}

static void define_all(void) {
  static const char *const letters[SDT_MAX_OPERANDS] = {
      "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
  const sdt_operand pair[] = {{"id", SDT_INTEGER, SDT_ARGUMENT},
                              {"sku", SDT_STRING, SDT_ARGUMENT}};
  const sdt_operand span[] = {{"duration_ns", SDT_INTEGER, SDT_DURATION},
                              {"outcome", SDT_INTEGER, SDT_OUTCOME},
                              {"id", SDT_INTEGER, SDT_ARGUMENT}};
  sdt_operand many[SDT_MAX_OPERANDS];
  for (size_t i = 0; i < SDT_MAX_OPERANDS; i++)
    many[i] = (sdt_operand){letters[i], SDT_INTEGER, SDT_ARGUMENT};
  two = define("two", SDT_EVENT, pair, 2);
  twelve = define("twelve", SDT_EVENT, many, SDT_MAX_OPERANDS);
  begins = define("begin", SDT_EVENT, pair, 1);
  ends = define("end", SDT_EVENT, pair, 1);
  define("span__begin", SDT_SPAN_BEGIN, span + 2, 1);
  span_ends = define("span__end", SDT_SPAN_END, span, 3);
}

static sdt_probe *find(const char *name) {
  if (strcmp(name, "two") == 0)
    return two;
  if (strcmp(name, "twelve") == 0)
    return twelve;
  if (strcmp(name, "end") == 0)
    return ends;
  return span_ends;
}

/* The key of `--by` takes 8 values, a duration those around 20 microseconds. */
static double fire(const sdt_probe *probe, unsigned long times) {
  uint64_t operands[SDT_MAX_OPERANDS] = {1};
  if (probe == two)
    operands[1] = (uint64_t)(uintptr_t) "x";
  double start = cpu_ns();
  for (unsigned long shot = 0; shot < times; shot++) {
    if (probe == span_ends) {
      operands[0] = 20000 + (shot & 1023);
      operands[2] = shot & 7;
    }
    if (sdt_watched(probe))
      sdt_fire(probe, operands);
  }
  return (cpu_ns() - start) / times;
}

static double fire_pairs(unsigned long times) {
  uint64_t operands[1];
  double start = cpu_ns();
  for (unsigned long shot = 0; shot < times; shot++) {
    operands[0] = shot & 7;
    if (sdt_watched(begins))
      sdt_fire(begins, operands);
    if (sdt_watched(ends))
      sdt_fire(ends, operands);
  }
  return (cpu_ns() - start) / times;
}

/* splitmix64, cut to a random number of bits so that all sizes come. */
static void fire_random(uint64_t state, unsigned long times) {
  uint64_t operands[3] = {0};
  while (times--) {
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    operands[0] = 1 + (z >> 23) % (UINT64_C(1) << (1 + z % 41));
    sdt_fire(span_ends, operands);
  }
}

/* Figures of /proc/self/smaps_rollup and .../fd, in bytes and as a number. */
static long resident(void) {
  char line[256];
  long kilobytes = 0;
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  while (file && fgets(line, sizeof line, file))
    sscanf(line, "Pss: %ld", &kilobytes);
  if (file)
    fclose(file);
  return kilobytes * 1024;
}

static void define_many(unsigned long count) {
  const sdt_operand operands[] = {{"id", SDT_INTEGER, SDT_ARGUMENT},
                                  {"sku", SDT_STRING, SDT_ARGUMENT}};
  sdt_pool_stats before, after;
  static unsigned long made;
  char name[SDT_MAX_NAME + 1];
  long memory = resident();
  sdt_pool_stat(pool, &before);
  double start = wall_ns();
  for (unsigned long i = 0; i < count; i++) {
    snprintf(name, sizeof name, "many_%lu", made++);
    define(name, SDT_EVENT, operands, 2);
  }
  double each = (wall_ns() - start) / count;
  sdt_pool_stat(pool, &after);
  printf("%f %zu %ld\n", each, after.images - before.images,
         resident() - memory);
}

static void obey(const char *line) {
  char name[64];
  unsigned long times, seed;

  if (sscanf(line, "fire %63s %lu", name, &times) == 2) {
    printf("%f\n", fire(find(name), times));
  } else if (sscanf(line, "pair %lu", &times) == 1) {
    printf("%f\n", fire_pairs(times));
  } else if (sscanf(line, "spans %lu %lu", &seed, &times) == 2) {
    fire_random(seed, times);
    puts("ok");
  } else if (sscanf(line, "define %lu", &times) == 1) {
    define_many(times);
  } else {
    puts("ok");
  }
  fflush(stdout);
}

int main(void) {
  char line[256];

  pool = sdt_pool_create();
  define_all();
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin))
    obey(line);
  return 0;
}
