/*
 * A library whose constructor calls back into the program that loads it: the
 * loader's lock is held meanwhile.
 *
 * SPDX-License-Identifier: MIT
 */
void harness_constructor(void);

__attribute__((constructor)) static void construct(void) {
  harness_constructor();
}
