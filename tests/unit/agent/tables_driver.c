/*
 * Counts durations with the hook's own code: reads the memory's file and then pairs of a
 * method and nanoseconds from stdin, in the process alone, without Ruby.
 *
 *   tables_driver FILE [WRAP]   WRAP: afterwards the first counter in use is set to
 *                               2^WRAP - 2, and three more are counted there
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tables.h"

struct state state;

void *map_private(size_t size) {
  void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return found == MAP_FAILED ? NULL : found;
}

struct pair {
  uint64_t method, ns;
};

static void count(struct pair pair) {
  state.methods[pair.method].calls++;
  count_later(state.streams, counter_of((uint32_t)pair.method, pair.ns));
}

static void flush(void) { count_later(state.streams, 0); }

/* Level by level: a full counter below makes the block above. */
static void wrap(struct pair pair, unsigned bits) {
  flush();
  uint32_t bucket = bucket_of(pair.ns);
  uint32_t block = block_of((uint32_t)pair.method, bucket / BLOCK_COUNTERS);
  uint32_t place = bucket % BLOCK_COUNTERS;
  for (unsigned level = 1; level < bits / 8; level++) {
    uint32_t below = block;
    for (unsigned i = 0; i < level; i++) {
      state.blocks[below][place] = 0xff;
      below = state.next_blocks[below];
    }
    count(pair);
    flush();
  }
  for (unsigned level = 0; level < bits / 8; level++) {
    state.blocks[block][place] = level ? 0xff : 0xfe;
    block = state.next_blocks[block];
  }
  for (int i = 0; i < 3; i++)
    count(pair);
  flush();
}

int main(int argc, char **argv) {
  struct stat found;
  int fd = open(argv[1], O_RDWR);
  if (fd < 0 || fstat(fd, &found))
    return 1;
  char *data = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    return 1;
  state.header = (struct header *)data;
  state.config.max_methods = state.header->methods_capacity;
  state.config.max_blocks = state.header->blocks_capacity;
  state.methods = (struct shared_method *)(data + state.header->methods_offset);
  state.places = (uint64_t *)(data + state.header->places_offset);
  state.blocks = (uint8_t(*)[BLOCK_COUNTERS])(data + state.header->blocks_offset);
  state.blocks_used = 1;
  struct stream stream = {
      .shared = (struct shared_stream *)(data + state.header->streams_offset)};
  state.streams = &stream;
  if (!make_histograms(state.header))
    return 1;
  struct pair pair, first = {0, 0};
  for (int i = 0; fread(&pair, sizeof(pair), 1, stdin) == 1; i++) {
    if (!i)
      first = pair;
    count(pair);
  }
  if (argc > 2)
    wrap(first, (unsigned)atoi(argv[2]));
  drop_histograms();
  return 0;
}
