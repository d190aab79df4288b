package apiserver

import "fmt"

// testRollingUpdate replaces the 20 pods of a service, a quarter at a time, as a
// Deployment does: new pods get ready, old ones terminate and serve on for their grace
// period, then they are gone and their ports closed. Every connection that is opened
// meanwhile, from everywhere, has to be served.
func (c *apiCluster) testRollingUpdate() {
	const replicas, step = 20, 5
	svc := c.service("rolling", "rolling", withNodePort)
	pods := func(version string, n int) []*pod {
		var list []*pod
		for i := range n {
			list = append(list, c.pod(fmt.Sprintf("rolling-%s-%d", version, i), "rolling", []string{"node-a", "node-b"}[i%2]))
		}
		return list
	}
	all := append(fronts(svc), nodePort(svc, c.AddressOf("node-a", v4)), nodePort(svc, c.AddressOf("node-b", v4)))
	current := pods("old", replicas)
	c.reaches(all, current...)
	l := c.newLoad(false, all...)
	for round := range replicas / step {
		leaving := current[:step]
		current = append(current[step:], pods(fmt.Sprintf("new-%d", round), step)...)
		for _, p := range leaving {
			p.terminate()
		}
		// A grace period that is just long enough: until both nodes have heard of it, and
		// what was on its way has arrived.
		c.reaches(all, current...)
		l.turn()
		for _, p := range leaving {
			p.delete()
		}
	}
	c.reaches(all, current...)
	l.turn()
	l.stop()
	for _, p := range current {
		p.delete()
	}
	c.deleteService(svc.Name)
}
