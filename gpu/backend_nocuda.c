/* Stands in for backend_cuda.cu where packd is built without CUDA: says so, and the CPU is used. */
#include "gpu/backend.h"

int pd_backend_cuda_new(const struct pd_validator_limits *limits, struct pd_backend **backend,
                        struct pd_error *error)
{
    (void)limits;
    *backend = NULL;
    return pd_error_set(error, PD_EUNAVAIL, "CUDA_ABSENT",
                        "this packd was built without CUDA; build it where nvcc is found, or with "
                        "PACKD_CUDA=/path/to/cuda");
}
