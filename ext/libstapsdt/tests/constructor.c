/*
 * A library whose constructor calls back into the program that loads it, while
 * the loader's lock is held.
 *
 * SPDX-License-Identifier: MIT
 */
void harness_constructor(void);

__attribute__((constructor)) static void construct(void) {
  harness_constructor();
}
