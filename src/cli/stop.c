/* stop.c - see stop.h. */
#include "cli/stop.h"

#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t signal_seen;
static sem_t came;

static void on_signal(int number)
{
    if (signal_seen) _exit(128 + number);
    signal_seen = number;
    sem_post(&came); /* whichever thread took the signal, the waiting one learns of it */
}

void qn_stop_catch(void)
{
    sem_init(&came, 0, 0);
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL); /* no SA_RESTART: a read of the keyboard returns */
    sigaction(SIGTERM, &action, NULL);
}

bool qn_stop_asked(void) { return signal_seen != 0; }

int qn_stop_status(void) { return signal_seen ? 128 + signal_seen : 0; }

void qn_stop_wait(void)
{
    while (!signal_seen) sem_wait(&came);
}

void qn_stop_clear(void) { signal_seen = 0; }
