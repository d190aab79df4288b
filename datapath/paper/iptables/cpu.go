package iptables

import "fmt"

// CPU is "-m cpu": the processor that evaluates the rule (xt_cpu.c).
type CPU struct {
	Number  uint32 // counts from 0
	Negated bool
}

var _ = addMatch(&module{
	name: "cpu", shapes: map[string]shape{"--cpu": notOne},
	phrases: map[string]phrase{"cpu": valuePhrase("cpu", "--cpu")},
	build: func(s *section) Match {
		v, negated := sole(s, "--cpu", anyUint32)
		return CPU{v, negated}
	},
})

func (CPU) module() string   { return "cpu" }
func (m CPU) write(w *words) { w.option(m.Negated, "--cpu", decimal(m.Number)) }

func (CPU) reads() Facts { return FactKernel }

func (m CPU) test(c *Context) Truth { return truthOf((m.Number == c.processor()) != m.Negated) }

func (m CPU) whyNot(c *Context) string {
	return isNot(fmt.Sprintf("processor %d handles it", c.Packet.CPU), decimal(m.Number), m.Negated)
}
