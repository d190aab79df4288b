package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/bench/e2e/node"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// isolated runs the cluster in namespaces of its own, and removes what it leaves behind.
func (o *options) isolated(test bool) error {
	code, err := netns.Isolation{
		Prepare: func() ([]*os.File, error) {
			if err := requireMachine(); err != nil {
				return nil, err
			}
			if _, err := node.Find(o.path(controlSocket)); err == nil {
				return nil, fmt.Errorf("a cluster in %s is running: end it with \"down\", or choose another -dir", o.Dir)
			}
			return nil, errors.Join(node.RemoveGroups(o.Group), os.RemoveAll(o.Dir), os.MkdirAll(o.Dir, 0o755))
		},
		Main: func([]*os.File) int {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if err := o.serve(ctx, test); err != nil {
				fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
				return 1
			}
			return 0
		},
	}.Run()
	// Here only the outer process arrives, when all others have ended.
	err = errors.Join(err, o.cleanUp())
	if err == nil && code != 0 {
		os.Exit(code)
	}
	return err
}

// cleanUp removes what a cluster leaves behind, except for logs.
func (o *options) cleanUp() error {
	err := node.RemoveGroups(o.Group)
	// Processes that have been killed may still be on their way out.
	for deadline := time.Now().Add(10 * time.Second); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); err = node.RemoveGroups(o.Group) {
		time.Sleep(50 * time.Millisecond)
	}
	errs := []error{err, os.RemoveAll(o.path(imagesFile)), os.RemoveAll(o.path("control", "etcd")), os.RemoveAll(o.path(controlSocket))}
	for i := range o.Nodes {
		errs = append(errs, os.RemoveAll(o.path(nodeName(i+1), "containers")))
	}
	return errors.Join(errs...)
}

// serve runs the cluster, inside.
func (o *options) serve(ctx context.Context, test bool) error {
	r, err := start(ctx, &o.settings)
	if err != nil {
		return err
	}
	err = o.use(ctx, r, test)
	if ctx.Err() != nil && !test {
		err = nil // "down"
	}
	return errors.Join(err, r.close())
}

func (o *options) use(ctx context.Context, r *running, test bool) error {
	if err := r.deployProxy(ctx); err != nil {
		return err
	}
	logf("the cluster is ready: kubeconfig %s", r.kubeconfig())
	var failed error
	if test {
		if failed = o.testAndCheck(ctx); !o.keep || ctx.Err() != nil {
			return failed
		}
		logf("%v", cmp.Or(failed, errors.New("passed")))
	}
	select {
	case err := <-r.ended:
		return errors.Join(failed, err)
	case <-ctx.Done():
		return failed
	}
}

func (o *options) testAndCheck(ctx context.Context) error {
	err := o.tests.run(ctx, &o.settings)
	if o.checks == "" || ctx.Err() != nil {
		return err
	}
	return errors.Join(err, runChecks(ctx, &o.settings, o.checkList()))
}

// checkList are the names in the flag; none stands for all.
func (o *options) checkList() []string {
	if o.checks == "all" {
		return nil
	}
	return strings.Split(o.checks, ",")
}
