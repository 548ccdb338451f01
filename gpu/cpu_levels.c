/* Which instruction sets this machine has: the dispatch of the CPU backend's clones.
 *
 * Asked of the compiler's run-time library, which reads CPUID once and checks that the operating
 * system saves the wide registers. The only state is the limit that tests set; any
 * thread. */
#include "gpu/cpu_levels.h"

static enum pd_cpu_level limit = PD_CPU_V4;

void pd_cpu_level_limit(enum pd_cpu_level most)
{
    limit = most;
}

static enum pd_cpu_level machine_level(void)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2"))
        return PD_CPU_BASE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return PD_CPU_V4;
    return PD_CPU_V3;
#else
    return PD_CPU_BASE;
#endif
}

enum pd_cpu_level pd_cpu_level(void)
{
    enum pd_cpu_level machine = machine_level();
    return machine < limit ? machine : limit;
}

const char *pd_cpu_level_name(enum pd_cpu_level level)
{
#if defined(__x86_64__)
    static const char *const names[] = {"x86-64", "x86-64-v3", "x86-64-v4"};
    return names[level];
#else
    (void)level;
    return "generic";
#endif
}
