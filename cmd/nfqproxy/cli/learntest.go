package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
)

// proof is the command "learn test".
type proof struct {
	context        context.Context
	course         *learn.Course
	flags          *learnFlags
	seeds          int
	seed           uint64
	parallel       int
	stdout, stderr io.Writer
}

// one proves one unit in this process.
func (p *proof) one(args []string) error {
	if len(args) != 1 {
		return errors.New("--seed requires one unit")
	}
	u, err := p.course.Unit(args[0])
	if err == nil {
		u, err = u.Draw(p.seed)
	}
	if err != nil {
		return err
	}
	return exitWith(session.RunProof(session.Options{Stderr: p.stderr}, u))
}

// all proves units, each with its seeds, in processes of their own.
func (p *proof) all(args []string) error {
	if p.seeds < 1 || p.parallel < 1 {
		return errors.New("--seeds and --parallel: want 1 or more")
	}
	units := p.course.Units()
	if len(args) > 0 {
		units = nil
		for _, name := range args {
			u, err := p.course.Unit(name)
			if err != nil {
				return err
			}
			units = append(units, u)
		}
	}
	var all errgroup.Group
	all.SetLimit(p.parallel)
	var mu sync.Mutex // guards the output
	failed, proofs := 0, 0
	for _, u := range units {
		seeds := p.seeds
		if !u.Differs() {
			seeds = 1
		}
		for seed := range seeds {
			proofs++
			all.Go(func() error {
				began := time.Now()
				output, err := p.child(u, uint64(seed))
				mu.Lock()
				defer mu.Unlock()
				result := "ok"
				if err != nil {
					failed++
					result = "FAILED"
				}
				if _, err := fmt.Fprintf(p.stdout, "%-6s  %-5s seed %d  %4.1f s  %s\n", result, u.ID, seed, time.Since(began).Seconds(), u.Title); err != nil {
					return err
				}
				_, err = p.stdout.Write(output)
				return err
			})
		}
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if failed > 0 {
		return exitcode.Negative(fmt.Errorf("%d of %d tests failed", failed, proofs))
	}
	return nil
}

// child proves a unit with a seed in a process of its own, and returns its output.
func (p *proof) child(u *learn.Unit, seed uint64) ([]byte, error) {
	args := []string{"learn", "test", "--seed", strconv.FormatUint(seed, 10), u.ID}
	if p.flags.units != "" {
		args = append(args, "--units", p.flags.units)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(p.context, self, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err = cmd.Run()
	return output.Bytes(), err
}
