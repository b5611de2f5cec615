/* What a table holds, and room for its histograms. */
#include "hook.h"

int has_entries_alone(void) {
  uint32_t flags = state.config.flags;
  return state.config.mode == MODE_TABLE && !(flags & (FLAG_HISTOGRAMS | FLAG_SITES));
}

uint32_t new_block(uint32_t *entry) {
  if (state.blocks_used >= state.config.max_blocks) {
    state.header->conditions |= CONDITION_BLOCKS_FULL;
    ADD(state.header->no_block, 1);
    return 0;
  }
  uint32_t block = state.blocks_used;
  RELEASE(state.header->blocks, ++state.blocks_used);
  RELEASE(*entry, block);
  return block;
}
