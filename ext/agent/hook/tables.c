/* Table mode: which entries it keeps, and memory for its histograms. */
#include "memory.h"
#include "tables.h"

enum { FEWEST_LINES_BITS = 6 };

int has_entries_alone(void) {
  uint32_t flags = state.config.flags;
  return state.config.mode == MODE_TABLE && !(flags & (FLAG_HISTOGRAMS | FLAG_SITES));
}

static size_t slots_size(void) { return sizeof(struct slot) << (3 + 32 - state.slots_shift); }

static void put_slot(uint32_t key, uint32_t block) {
  uint32_t i = slot_of(key);
  while (state.slots[i].block)
    i = slot_after(i);
  state.slots[i] = (struct slot){key, block};
}

/* Double the slots; at most half of them are used. */
static int grow_slots(void) {
  struct slot *before = state.slots;
  size_t size = slots_size();
  struct slot *slots = map_private(2 * size);
  if (!slots)
    return 0;
  state.slots = slots;
  state.slots_shift--;
  for (size_t i = 0; i < size / sizeof(*before); i++)
    if (before[i].block)
      put_slot(before[i].key, before[i].block);
  munmap(before, size);
  return 1;
}

static uint32_t no_block(void) {
  state.header->conditions |= CONDITION_BLOCKS_FULL;
  ADD(state.header->no_block, 1);
  return 0;
}

static uint32_t take_block(uint64_t place) {
  uint32_t block = state.blocks_used;
  STORE(state.places[block], place);
  RELEASE(state.header->blocks, ++state.blocks_used);
  return block;
}

uint32_t new_block(uint32_t method, uint32_t part) {
  size_t slots = slots_size() / sizeof(struct slot);
  if (state.blocks_used >= state.config.max_blocks ||
      (state.blocks_used >= slots / 2 && !grow_slots()))
    return no_block();
  uint32_t block = take_block(method | (uint64_t)part << 32);
  put_slot(method << PART_BITS | part, block);
  return block;
}

/* Return the block with the next 8 bits of the same counters. */
static uint32_t next_block(uint32_t block) {
  uint32_t *next = &state.next_blocks[block];
  if (!*next && state.blocks_used < state.config.max_blocks)
    *next = take_block(state.places[block] + (1ull << 48));
  return *next;
}

static int add_above(uint32_t block, uint32_t place) {
  uint32_t next = next_block(block);
  if (!next)
    return 0;
  uint8_t *counter = &state.blocks[next][place];
  uint8_t count = (uint8_t)(*counter + 1);
  if (!count && !add_above(next, place))
    return 0;
  STORE(*counter, count);
  return 1;
}

/* Carry from a full counter. While `carries` is odd, readers must not trust the counts. */
void carry(uint32_t block, uint32_t place) {
  STORE(state.header->carries, state.header->carries + 1);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  if (add_above(block, place))
    STORE(state.blocks[block][place], 0);
  else
    no_block();
  RELEASE(state.header->carries, state.header->carries + 1);
}

int make_histograms(const struct header *header) {
  if (!header->places_offset)
    return 1;
  state.bucket_bits = header->digits == 3 ? 11 : 8;
  state.slots_shift = 32 - FEWEST_LINES_BITS;
  state.slots = map_private(slots_size());
  state.next_blocks = map_private(state.config.max_blocks * sizeof(uint32_t));
  return state.slots && state.next_blocks;
}

void drop_histograms(void) {
  if (state.slots)
    munmap(state.slots, slots_size());
  if (state.next_blocks)
    munmap(state.next_blocks, state.config.max_blocks * sizeof(uint32_t));
}
