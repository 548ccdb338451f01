/* Looks whether packd's accept4, recvmsg and SSL_read are in gRPC's way.
 *
 * Place in the flow: rpc.c asks at start, on the main thread, before there is a listener. If
 * libgrpc were another one (with a TLS library inside, calling SSL_read_ex, or bound to its
 * libraries by address), packd's functions would never be called and nothing else would show it: no
 * bound on connections, none on header blocks. So packd does not start then. Shown is
 *
 *   that libgrpc wants the function from outside: a relocation of its names it, undefined
 *   that who asks for the name gets packd's: the first in the process that the linker finds
 *
 * Where gRPC is a part of packd's own program, as a stand-in for it is in tests, the names were
 * bound when it was linked, and a second function of the name would have been an error then. It
 * does not show that gRPC reads with nothing else besides; the attacks of tests/hostile do. It
 * reads tables that the dynamic linker keeps, of 64-bit machines with addends, and nothing from
 * disk. */
#include "server/rpc/interposed.h"

#include "base/check.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

/* Of a loaded object. */
struct tables {
    const Elf64_Sym *symbols;
    const char *names;
    const Elf64_Rela *at_start, *at_calls;
    size_t start_count, calls_count;
};

/* Some linkers leave these as distances from where the object lies. */
static const void *address_of(const struct link_map *object, Elf64_Addr value)
{
    return (const void *)(value < object->l_addr ? object->l_addr + value : value);
}

static struct tables tables_of(const struct link_map *object)
{
    struct tables t = {0};
    for (const Elf64_Dyn *entry = object->l_ld; entry->d_tag != DT_NULL; entry++) {
        const void *address = address_of(object, entry->d_un.d_ptr);
        size_t count = entry->d_un.d_val / sizeof(Elf64_Rela);
        switch (entry->d_tag) {
        case DT_SYMTAB:
            t.symbols = address;
            break;
        case DT_STRTAB:
            t.names = address;
            break;
        case DT_RELA:
            t.at_start = address;
            break;
        case DT_RELASZ:
            t.start_count = count;
            break;
        case DT_JMPREL:
            t.at_calls = address;
            break;
        case DT_PLTRELSZ:
            t.calls_count = count;
            break;
        default:
            break;
        }
    }
    return t;
}

static bool names_it(const struct tables *t, const Elf64_Rela *relocations, size_t count,
                     const char *name)
{
    for (size_t i = 0; relocations && i < count; i++) {
        const Elf64_Sym *symbol = &t->symbols[ELF64_R_SYM(relocations[i].r_info)];
        if (symbol->st_shndx == SHN_UNDEF && strcmp(t->names + symbol->st_name, name) == 0)
            return true;
    }
    return false;
}

static bool wants(const struct tables *t, const char *name)
{
    return t->symbols && t->names &&
           (names_it(t, t->at_calls, t->calls_count, name) ||
            names_it(t, t->at_start, t->start_count, name));
}

/* NULL: in none. */
static const struct link_map *object_of(const void *address)
{
    Dl_info info;
    void *object = NULL;
    bool found = address && dladdr1(address, &info, &object, RTLD_DL_LINKMAP) != 0;
    return found ? object : NULL;
}

int pd_interposed_check(const char *name, void (*own)(void), struct pd_error *error)
{
    const struct link_map *grpc = object_of(dlsym(RTLD_DEFAULT, "grpc_init"));
    PD_CHECK(grpc);
    if (grpc == object_of((const void *)own))
        return 0;
    const struct tables tables = tables_of(grpc);
    const char *why = NULL;
    if (!wants(&tables, name))
        why = "it does not call that by its public name";
    else if (dlsym(RTLD_DEFAULT, name) != (const void *)own)
        why = "another library's comes before packd's";
    if (!why)
        return 0;
    return pd_error_set(error, PD_EUNSUPPORTED, "LIBGRPC",
                        "%s cannot be watched through %s: %s; run packd with the libgrpc that it "
                        "was built for, Debian 12's 1.51",
                        grpc->l_name, name, why);
}
