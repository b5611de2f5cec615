/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "reader.h"

#define PROBES 10000

static long resident_kilobytes(void) {
  FILE *file = fopen("/proc/self/smaps_rollup", "re");
  char line[256];
  long kilobytes = -1;
  while (file && fgets(line, sizeof(line), file))
    if (sscanf(line, "Rss: %ld kB", &kilobytes) == 1)
      break;
  if (file)
    fclose(file);
  return kilobytes;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void ten_thousand_body(void) {
  const sdt_operand operands[] = {{"id", SDT_INTEGER, SDT_ARGUMENT},
                                  {"sku", SDT_STRING, SDT_ARGUMENT},
                                  {"price", SDT_FLOAT, SDT_ARGUMENT}};
  size_t descriptors = reader_descriptors(getpid());
  long before = resident_kilobytes();
  double start = now(), slowest = 0;
  sdt_pool *pool = sdt_pool_create();
  for (int i = 0; i < PROBES; i++) {
    char name[32];
    snprintf(name, sizeof(name), "checkout_step_%d", i);
    sdt_probe *probe;
    double one = now();
    CHECK_EQ(sdt_define(pool, "ruby_app", name, SDT_EVENT, operands, 3, NULL,
                        &probe),
             SDT_OK);
    one = now() - one;
    slowest = one > slowest ? one : slowest;
  }
  double mean = (now() - start) / PROBES;
  long used = resident_kilobytes() - before;
  descriptors = reader_descriptors(getpid()) - descriptors;
  sdt_pool_stats stats;
  sdt_pool_stat(pool, &stats);
  printf("  %d probes: %.2f us each (slowest %.0f us), %ld kB, %zu images, "
         "%zu descriptors, %zu bytes of notes and sites\n",
         PROBES, mean, slowest, used, stats.images, descriptors, stats.bytes);
  CHECK_EQ(stats.probes, PROBES);
  CHECK_EQ(descriptors, stats.images);
  CHECK(stats.images <= 3);
  if (!harness_instrumented())
    CHECK(used <= 4096);
  CHECK_EQ(reader_count(getpid(), "ruby_app", "checkout_step_9999"), 1);
  sdt_pool_destroy(pool);
}

static void ten_thousand(void) { harness_in_child(ten_thousand_body); }

static void time_fire(sdt_pool *pool, size_t count) {
  sdt_operand operands[SDT_MAX_OPERANDS];
  for (size_t i = 0; i < count; i++)
    operands[i] = (sdt_operand){NULL, SDT_INTEGER, SDT_ARGUMENT};
  sdt_probe *probe;
  CHECK_EQ(sdt_define(pool, "p", "p", SDT_EVENT, operands, count, NULL, &probe),
           SDT_OK);
  const uint64_t values[SDT_MAX_OPERANDS] = {0};
  const int shots = 1000000;
  double start = now();
  for (int i = 0; i < shots; i++)
    sdt_fire(probe, values);
  printf("  %zu operands: %.2f ns\n", count, (now() - start) * 1e3 / shots);
}

/* Only reports the time. */
static void untraced_fire(void) {
  if (harness_instrumented())
    return;
  sdt_pool *pool = sdt_pool_create();
  static const size_t counts[] = {0, 2, 6, 12};
  for (size_t i = 0; i < 4; i++)
    CHECK_HELPER(time_fire(pool, counts[i]));
  sdt_pool_destroy(pool);
}

const struct test scale_tests[] = {
    {"ten thousand probes", ten_thousand},
    {"firing untraced", untraced_fire},
    {NULL, NULL},
};
