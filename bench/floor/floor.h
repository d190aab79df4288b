// What both programs share: a thread for each queue, bound by libnetfilter_queue, and
// a plain loop that receives one packet at a time.
#ifndef FLOOR_H
#define FLOOR_H

#include <stdint.h>

#include <libnetfilter_queue/libnetfilter_queue.h>

// Bytes of a packet that are copied: the longest IPv4 header and the ports.
enum { COPY_RANGE = 64, MAX_QUEUES = 16 };

struct queue {
	uint16_t number;
	struct nfq_handle *handle;
	struct nfq_q_handle *binding;
	int fd;
	int conntrack_fd; // -1: not wanted
	uint32_t sequence;
	uint32_t random;
};

// serve runs a loop for each of `count` queues from `first` on, and does not return.
// It prints "ready" when all are bound.
void serve(uint16_t first, int count, int with_conntrack, nfq_callback *callback);

// number reads a decimal argument of at most `max`, or ends the program.
unsigned long number(const char *text, unsigned long max);

// die ends the program with what went wrong.
_Noreturn void die(const char *what);

#endif
