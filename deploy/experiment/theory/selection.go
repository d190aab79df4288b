package theory

// DrawsJain is Jain's index of the loads of servers after a number of customers have each been sent to a random one. A load has the
// binomial distribution, and the index is 1/(1+v) with the square v of the loads' coefficient of variation: (servers-1)/customers on average.
func DrawsJain(customers, servers int) float64 {
	return 1 / (1 + float64(servers-1)/float64(customers))
}

// RotationsJain is Jain's index of the loads of servers if each customer comes to one of n dispatchers at random, and each dispatcher
// sends its own to the servers in turn, from a random one on. A dispatcher with m customers gives all servers as many, and one more to m
// modulo the number of servers, neighbours of each other. Only the latter differ, and independently among dispatchers: for a share f of
// servers, the variance of a load grows by f(1-f). With fewer customers than servers for each dispatcher that is nearly the variance
// of random draws.
func RotationsJain(customers, servers, n int) float64 {
	variance := 0.0
	binomial(customers, n, func(m int, p float64) {
		f := float64(m%servers) / float64(servers)
		variance += float64(p * f * (1 - f))
	})
	mean := float64(customers) / float64(servers)
	return 1 / (1 + float64(n)*variance/float64(mean*mean))
}

// binomial calls each with the numbers of successes among trials, each with the probability 1/n, and with their probabilities, as far
// as these matter.
func binomial(trials, n int, each func(successes int, p float64)) {
	if n == 1 {
		each(trials, 1)
		return
	}
	// From the most frequent number on, in both directions: each probability follows from the one beside it.
	weights := make(map[int]float64)
	mode, sum := trials/n, 0.0
	odds := 1 / float64(n-1)
	var numbers []int
	add := func(m int, w float64) { weights[m], sum, numbers = w, sum+w, append(numbers, m) }
	const least = 1e-20
	for m, w := mode, 1.0; m <= trials && w > least; m++ {
		add(m, w)
		w *= float64(trials-m) / float64(m+1) * odds
	}
	for m, w := mode, 1.0; m > 0; m-- {
		if w *= float64(m) / float64(trials-m+1) / odds; w <= least {
			break
		}
		add(m-1, w)
	}
	for _, m := range numbers {
		each(m, weights[m]/sum)
	}
}
