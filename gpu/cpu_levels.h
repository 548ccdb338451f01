/* One binary for every x86-64: the same function compiled for three instruction sets, picked at
 * run time.
 *
 * The body is a PD_CPU_BODY function; PD_CPU_CLONES makes NAME_base, NAME_v3 (AVX2, FMA) and
 * NAME_v4 (AVX-512) from it and NAME, which calls the widest the machine has. Compile such files
 * with -O3. On other machines there is only the base. */
#ifndef PD_GPU_CPU_LEVELS_H
#define PD_GPU_CPU_LEVELS_H

enum pd_cpu_level { PD_CPU_BASE, PD_CPU_V3, PD_CPU_V4 };

/* What this machine can run. Any thread. */
enum pd_cpu_level pd_cpu_level(void);
/* For tests: never more than this from now on. Before other threads exist. */
void pd_cpu_level_limit(enum pd_cpu_level most);
/* "x86-64-v3"; "generic" off x86. */
const char *pd_cpu_level_name(enum pd_cpu_level level);

#define PD_CPU_BODY static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define PD_CPU_TARGET_V3 __attribute__((target("avx2,fma,bmi,bmi2,lzcnt,f16c")))
#define PD_CPU_TARGET_V4 \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2,lzcnt,f16c")))
#define PD_CPU_CLONES(name, body, parameters, arguments) \
    static void name##_base parameters                   \
    {                                                    \
        body arguments;                                  \
    }                                                    \
    PD_CPU_TARGET_V3 static void name##_v3 parameters    \
    {                                                    \
        body arguments;                                  \
    }                                                    \
    PD_CPU_TARGET_V4 static void name##_v4 parameters    \
    {                                                    \
        body arguments;                                  \
    }                                                    \
    void name parameters                                 \
    {                                                    \
        switch (pd_cpu_level()) {                        \
        case PD_CPU_V4:                                  \
            name##_v4 arguments;                         \
            break;                                       \
        case PD_CPU_V3:                                  \
            name##_v3 arguments;                         \
            break;                                       \
        case PD_CPU_BASE:                                \
            name##_base arguments;                       \
            break;                                       \
        }                                                \
    }
#else
#define PD_CPU_CLONES(name, body, parameters, arguments) \
    void name parameters                                 \
    {                                                    \
        body arguments;                                  \
    }
#endif

#endif
