/* One function for more than one level of instructions.
 *
 * PD_CPU_LEVELS before a function: it is compiled for AVX2, too, and the loader takes that where
 * the machine has it. For loops over arrays, in files compiled with -O3; what they compute must not
 * depend on the level. Sanitizers and other compilers get the base alone. */
#ifndef PD_BASE_CPU_H
#define PD_BASE_CPU_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define PD_CPU_LEVELS __attribute__((target_clones("avx2", "default")))
#else
#define PD_CPU_LEVELS
#endif

#endif
