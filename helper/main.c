/* agentenv-helper serve | listen | connect | reach | install | confine */
#include <unistd.h>

#include "helper.h"

int listen_main(int argc, char **argv);

static const struct { const char *name; int (*run)(int, char **); } MODES[] = {
    {"serve", serve_main},
    {"connect", connect_main},
    {"reach", reach_main},
    {"install", install_main},
    {"listen", listen_main},
#ifdef WITH_CONFINE
    {"confine", confine_main},
#endif
};

int main(int argc, char **argv)
{
    static const char usage[] = "usage: agentenv-helper serve --fd N --config-fd M | listen PATH | connect PATH | reach NAME FD | confine ...\n";
    for (size_t i = 0; argc > 1 && i < sizeof MODES / sizeof *MODES; i++)
        if (!strcmp(argv[1], MODES[i].name)) return MODES[i].run(argc - 1, argv + 1);
    write_all(2, usage, sizeof usage - 1);
    return 2;
}
