package cluster

// Prepare is prepare, for external tests.
var Prepare = prepare

// Dir returns the directory of the cluster's files.
func (c *Cluster) Dir() string { return c.config.Dir }

// Crash kills the process behind the component's back and waits for its end.
func (c *Component) Crash() error {
	c.mu.Lock()
	r := c.run
	c.mu.Unlock()
	err := r.process.Kill()
	<-r.exited
	return err
}

// Alive reports whether the process runs.
func (c *Component) Alive() bool { return c.run.alive() }
