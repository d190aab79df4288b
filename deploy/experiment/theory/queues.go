// Package theory has what theory and published papers say about queues, allocations and hashing, to compare results with. Times
// are in units of the mean service time. Results have the same bits on all machines (see package exact).
package theory

import (
	"math"

	"github.com/nfqproxy/nfqproxy/datapath/balance/exact"
)

// ErlangC is the probability that a customer of the queue M/M/c waits, with c servers that are busy to a load below 1: Erlang's
// delay formula (Kleinrock, Queueing Systems 1, 1975, section 3.5).
func ErlangC(c int, load float64) float64 {
	// The recursion of the loss formula B: B(0) = 1, B(k) = aB(k-1) / (k + aB(k-1)). It does not overflow for many servers.
	offered, loss := load*float64(c), 1.0
	for k := 1; k <= c; k++ {
		blocked := offered * loss
		loss = blocked / (float64(k) + blocked)
	}
	return loss / (1 - float64(load*(1-loss)))
}

// MMcTime is the mean time of a customer in the queue M/M/c, with the service (Kleinrock 1975, section 3.5). With one server it
// is 1/(1-load).
func MMcTime(c int, load float64) float64 {
	return 1 + ErlangC(c, load)/(float64(c)*(1-load))
}

// MMcNumber is the mean number of customers in the queue M/M/c, with those in service: Little's law on [MMcTime]. With one server
// it is load/(1-load).
func MMcNumber(c int, load float64) float64 {
	return load * float64(c) * MMcTime(c, load)
}

// MM1Late is the share of customers of the queue M/M/1 who are not served within a time. Without cancel they stay until they are: the time
// in the queue is exponential with the rate 1-load (Kleinrock 1975, section 3.2). With it they leave at that time, also in the midst of
// their service. The work in the queue is then that in a dam of that size, with the distribution of the queue up to there (Takács,
// Combinatorial Methods in the Theory of Stochastic Processes, 1967).
func MM1Late(load, within float64, cancel bool) float64 {
	x := exact.Exp(-(1 - load) * within)
	if cancel {
		return (1 - load) * x / (1 - float64(load*x))
	}
	return x
}

// SupermarketTime is the mean time of a customer who joins the shortest of d queues that are chosen at random among many, each
// with one server, Poisson arrivals and exponential service: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing,
// IEEE Transactions on Parallel and Distributed Systems 12(10), 2001, corollary 1; Vvedenskaya, Dobrushin and Karpelevich, 1996.
// It is the limit for infinitely many queues: the sum over i >= 1 of load to the power of (d^i - d)/(d - 1), which is
// d + d^2 + ... + d^(i-1). With one choice it is the time of the queue M/M/1.
func SupermarketTime(d int, load float64) float64 {
	if d <= 1 {
		return MMcTime(1, load)
	}
	// Each term is the one before to the power of d, times load to the power of d.
	sum, term, factor := 0.0, 1.0, power(load, d)
	for term > 1e-18 {
		sum += term
		term = power(term, d) * factor
	}
	return sum
}

// IdleQueueTime is the mean time of a customer who joins an idle queue by Join-Idle-Queue, with many dispatchers and servers for
// each of them, Poisson arrivals and exponential service: Lu, Xie, Kliot, Geller, Larus and Greenberg, Join-Idle-Queue: A novel load
// balancing algorithm for dynamically scalable web services, Performance Evaluation 68(11), 2011. It is the limit for infinitely many
// dispatchers: a server that gets idle joins the list of one dispatcher, at random, and a dispatcher without servers in its list sends
// the customer to any server.
//
// The lists are then queues M/M/1 with the load p for which p/(1-p) = servers*(1-load), the mean length of a list: a dispatcher
// knows an idle server with the probability p. A busy server only gets customers that were sent anywhere, at the rate load*(1-p), so
// that the number of customers at a busy server is geometric.
func IdleQueueTime(servers, load float64) float64 {
	length := servers * (1 - load)
	knows := length / (1 + length)
	return 1 / (1 - float64(load*(1-knows)))
}

func power(x float64, n int) float64 {
	p := 1.0
	for range n {
		p *= x
	}
	return p
}

// Relaxation is the time in which the queue M/M/1 forgets how it began: the difference between its state and the stationary one
// falls by a factor of e (Morse, Stochastic Properties of Waiting Lines, Operations Research 3(3), 1955; Cohen, The Single Server
// Queue, 1982, II.2.1).
func Relaxation(load float64) float64 {
	gap := 1 - math.Sqrt(load)
	return 1 / float64(gap*gap)
}

// StaleTime is the mean time, in units of the mean service time, of a customer who joins the queue that is the shortest of d random ones
// by a board that is renewed each time that age has passed: the model of periodic updates of Mitzenmacher, How Useful Is Old
// Information?, IEEE Transactions on Parallel and Distributed Systems 11(1), 2000, with Poisson arrivals and exponential service, in the
// limit of many queues. age is in the same units, above 0, and load below 1.
//
// Between two renewals, queues with the same length on the board get the same arrivals, whatever they have become: each is a queue M/M/1
// that begins with that length. The lengths at the end are the next board. That is repeated until the boards are the same.
func StaleTime(d int, load, age float64) float64 {
	if d <= 1 {
		return MMcTime(1, load) // the board does not matter
	}
	levels := 64 + int(4*age)
	const perUnit = 16 // steps of the differential equations
	steps := max(int(math.Ceil(age*perUnit)), 4)
	h := age / float64(steps)
	board := make([]float64, levels) // the shares of queues by their length
	board[0] = 1
	before := 0.0
	for {
		next, number := make([]float64, levels), 0.0
		above := 1.0 // the share of queues that are at least as long
		for length, share := range board {
			longer := max(above-share, 0)
			if share > 1e-12 {
				// A customer sees nothing shorter in d draws, and of equals takes any: load·(above^d - longer^d) for all of them.
				rate := 0.0
				for k := range d {
					rate += float64(power(above, k) * power(longer, d-1-k))
				}
				p := make([]float64, levels)
				p[length] = 1
				number += float64(share * relax(p, load*rate, h, steps))
				for i := range next {
					next[i] += float64(share * p[i])
				}
			}
			above = longer
		}
		board = next
		if math.Abs(number-before) < 1e-7*min(age, 1)*number {
			return number / load
		}
		before = number
	}
}

// relax changes the probabilities of the lengths of a queue M/M/1 by a number of steps of time h, with the given rate of arrivals, and
// returns the mean length over that time.
func relax(p []float64, rate, h float64, steps int) float64 {
	slope := func(at, into []float64) {
		last := len(at) - 1
		for i := range at {
			v := 0.0
			if i > 0 {
				v += float64(rate*at[i-1]) - at[i]
			}
			if i < last {
				v += at[i+1] - float64(rate*at[i])
			}
			into[i] = v
		}
	}
	length := func() (mean float64) {
		for i, v := range p {
			mean += float64(float64(i) * v)
		}
		return mean
	}
	step := newRungeKutta(len(p), slope)
	sum, before := 0.0, length()
	for range steps {
		step(p, h)
		after := length()
		sum += (before + after) / 2
		before = after
	}
	return sum / float64(steps)
}
