package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	experimentNamespace = "experiments" // of manifests/experiment.yaml
	volumeDir           = "/var/lib/experiment"
)

// experiment runs a shipped experiment in pods: to the end, interrupted and continued, while its pods are deleted, with a volume, and with
// an image that does not exist. "experiment verify" compares each file of the results with a run on this machine.
func (c *checker) experiment(ctx context.Context) (err error) {
	dir := c.path("experiment")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	if err := c.onNode(ctx, 1, "mkdir", "-p", volumeDir); err != nil {
		return err
	}
	if err := c.apply(ctx, "experiment.yaml", map[string]any{"Node": nodeName(1), "Dir": volumeDir}); err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, c.kubectl(ctx, nil, "delete", "namespace/"+experimentNamespace, "persistentvolume/experiment"))
	}()
	for _, step := range []struct {
		name string
		do   func(context.Context, string) error
	}{
		{"whole", c.experimentWhole}, {"interrupted", c.experimentInterrupted}, {"deleted", c.experimentDeleted}, {"volume", c.experimentVolume}, {"image", c.experimentImage},
	} {
		if err := step.do(ctx, filepath.Join(dir, step.name)); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// experimentArgs run heavy-tail, of three algorithms, in pods.
func experimentArgs(dir string, more ...string) []string {
	return append([]string{"experiment", "run", "heavy-tail", "--on=kubernetes", "--namespace=" + experimentNamespace, "--image=nfqproxy:dev",
		"--cpu=250m", "--memory=256Mi", "--output-directory=" + dir}, more...)
}

// verified wants results of a run here, bit for bit, and no Job.
func (c *checker) verified(ctx context.Context, dir string) error {
	bundle := dir + ".tar.gz"
	if err := os.RemoveAll(bundle); err != nil {
		return err
	}
	if _, err := c.own(ctx, "experiment", "bundle", dir, "--write="+bundle); err != nil {
		return err
	}
	out, err := c.own(ctx, "experiment", "verify", bundle)
	if err == nil && (!strings.Contains(out, "\nruns.parquet: same\n") || !strings.Contains(out, " files in cells: same\n")) {
		err = fmt.Errorf("the results are not compared: %s", out)
	}
	jobs, jobsErr := c.client.BatchV1().Jobs(experimentNamespace).List(ctx, metav1.ListOptions{})
	if jobsErr == nil && len(jobs.Items) > 0 {
		jobsErr = fmt.Errorf("a Job is left: %s", jobs.Items[0].Name)
	}
	return errors.Join(err, jobsErr)
}

func (c *checker) experimentWhole(ctx context.Context, dir string) error {
	if _, err := c.own(ctx, experimentArgs(dir, "--seeds=3", "--runs-per-pod=2")...); err != nil {
		return err
	}
	return c.verified(ctx, dir)
}

// experimentInterrupted interrupts the command once the Job is there. The Job goes on, and the command continues with it.
func (c *checker) experimentInterrupted(ctx context.Context, dir string) error {
	args := experimentArgs(dir, "--seeds=4")
	cmd, messages, err := c.startExperiment(ctx, args)
	if err != nil {
		return err
	}
	lines := bufio.NewReader(messages)
	begin, readErr := lines.ReadString('\n')
	_ = cmd.Process.Signal(os.Interrupt)
	rest, _ := io.ReadAll(lines)
	err = cmd.Wait()
	if text := begin + string(rest); readErr != nil || err == nil || !strings.Contains(begin, "12 runs in 12 pods") || !strings.Contains(text, " keeps running; the same command continues with it\n") {
		return fmt.Errorf("interrupted: %w: %s", errors.Join(readErr, err), text)
	}
	out, err := c.own(ctx, args...)
	if err == nil && (!strings.Contains(out, " continues: ") || strings.Contains(out, " at a time")) {
		err = fmt.Errorf("it does not continue with the Job: %s", out)
	}
	return errors.Join(err, c.verified(ctx, dir))
}

// startExperiment starts a run, and returns its messages.
func (c *checker) startExperiment(ctx context.Context, args []string) (*exec.Cmd, io.Reader, error) {
	cmd := exec.CommandContext(ctx, c.Program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	messages, err := cmd.StderrPipe()
	if err != nil {
		return nil, nil, err
	}
	return cmd, messages, cmd.Start()
}

// experimentDeleted deletes all pods, those that run and those that have ended, once some have. Their runs are made again.
func (c *checker) experimentDeleted(ctx context.Context, dir string) error {
	cmd, messages, err := c.startExperiment(ctx, experimentArgs(dir, "--seeds=4", "--parallel=4"))
	if err != nil {
		return err
	}
	ended := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(messages)
		ended <- string(text)
	}()
	err = c.await(ctx, "a pod to end", func() error {
		pods, err := c.client.CoreV1().Pods(experimentNamespace).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Succeeded"})
		if err == nil && len(pods.Items) < 2 {
			err = fmt.Errorf("%d have", len(pods.Items))
		}
		return err
	})
	if err == nil {
		err = c.kubectl(ctx, nil, "--namespace="+experimentNamespace, "delete", "pods", "--all", "--wait=false")
	}
	text := <-ended
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return c.verified(ctx, dir)
}

// experimentVolume runs the experiment twice with a volume. The second run has the results of the first: the times of decisions in the
// volume, which are changed meanwhile.
func (c *checker) experimentVolume(ctx context.Context, dir string) error {
	const mark = "424242"
	args := experimentArgs(dir, "--seeds=1", "--volume=results")
	run := func() error {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if _, err := c.own(ctx, args...); err != nil {
			return err
		}
		return c.verified(ctx, dir)
	}
	if err := run(); err != nil {
		return err
	}
	if err := c.onNode(ctx, 1, "find", volumeDir, "-name", "*-cost.json", "-exec", "sed", "-i", `s/"n": .*/"n": `+mark+"/", "{}", "+"); err != nil {
		return err
	}
	if err := run(); err != nil {
		return err
	}
	costs, err := os.ReadFile(filepath.Join(dir, "costs.csv"))
	if n := bytes.Count(costs, []byte(","+mark+"\n")); err == nil && n != 3 {
		err = fmt.Errorf("%d of 3 results are those of the volume: %s", n, costs)
	}
	return err
}

// experimentImage wants an end with the reason: no node can pull the image.
func (c *checker) experimentImage(ctx context.Context, dir string) error {
	const enough = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	_, err := c.own(ctx, experimentArgs(dir, "--seeds=1", "--image=nfqproxy:missing")...)
	if err == nil || !strings.Contains(err.Error(), "cannot pull the image") || !strings.Contains(err.Error(), "so it was deleted") {
		return fmt.Errorf("want an error about the image: %w", err)
	}
	return nil
}
