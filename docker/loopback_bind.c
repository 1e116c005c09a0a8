/* Keeps chosen ports of a process on loopback: LD_PRELOAD it and set PSFLEET_LOOPBACK_PORTS="LOW-HIGH". */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BAD_JOB = 78 }; /* psfleet/errors.py: nobody starts the process again */

typedef int bind_function(int, const struct sockaddr *, socklen_t);

/* Whether the port, in network order, is one of those to keep. A range that cannot be read ends the process: going on
   would open what was to be closed. */
static int is_kept(in_port_t port_in_network_order) {
    const char *range = getenv("PSFLEET_LOOPBACK_PORTS");
    unsigned low, high, port = ntohs(port_in_network_order);
    char rest;
    if (range == NULL)
        return 0;
    if (sscanf(range, "%u-%u%c", &low, &high, &rest) != 2 || low > high) {
        fprintf(stderr, "PSFLEET_LOOPBACK_PORTS is '%s', expected LOW-HIGH\n", range);
        _exit(BAD_JOB);
    }
    return low <= port && port <= high;
}

/* As bind(2). A kept port gets the loopback address; for IPv6 it is ::ffff:127.0.0.1, which IPv4 clients reach. */
int bind(int socket, const struct sockaddr *address, socklen_t length) {
    bind_function *next = (bind_function *)dlsym(RTLD_NEXT, "bind");
    if (next == NULL) {
        errno = ENOSYS;
        return -1;
    }
    if (address != NULL && address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in local;
        memcpy(&local, address, sizeof local);
        if (is_kept(local.sin_port)) {
            local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            return next(socket, (const struct sockaddr *)&local, sizeof local);
        }
    }
    if (address != NULL && address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 local;
        memcpy(&local, address, sizeof local);
        if (is_kept(local.sin6_port)) {
            inet_pton(AF_INET6, "::ffff:127.0.0.1", &local.sin6_addr);
            return next(socket, (const struct sockaddr *)&local, sizeof local);
        }
    }
    return next(socket, address, length);
}
