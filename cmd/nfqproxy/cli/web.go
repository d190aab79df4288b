package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/kubeproxyconfig"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
	"github.com/nfqproxy/nfqproxy/control/view/web"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// webFlags are the flags of nfqproxy web.
type webFlags struct {
	server  serverFlags
	page    string
	history string
	noOpen  bool
}

func newWebCommand(connect connector) *cobra.Command {
	var f webFlags
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Serve the web page of a cluster or node, and open it",
		Long: `Serve the web page and the flow API of the nodes that the flags select on a loopback
address of this machine, until interrupted, and open the page in the browser. The printed
address contains a token: without it, other users of this machine cannot read the flows.
If a lab is running, open the lab's own page, unless --history is given.`,
		Example: `  nfqproxy web --cluster
  nfqproxy web --cluster --context production --no-open
  sudo nfqproxy web --server unix:/run/nfqproxy/flows.sock`,
		Args:        noArgs,
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return blameFlag(cmd.Flags(), f.run(cmd, connect))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.page, "page", "", "loopback address and port of the page (default: "+viewapi.DefaultPage+" or, if that is in use, any port)")
	flags.BoolVar(&f.noOpen, "no-open", false, "do not open the page in a browser")
	historyFlag(cmd, &f.history, "also show earlier flows,")
	f.server.add(cmd)
	return cmd
}

func (f *webFlags) run(cmd *cobra.Command, connect connector) error {
	ctx, stdout, stderr := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if err := f.server.notHubble("web", "nodes and Services"); err != nil {
		return err
	}
	cluster, err := f.server.ofCluster()
	if err != nil {
		return err
	}
	if !cluster && f.server.server == "" {
		l, err := lab.FlowAPIOf(f.server.lab)
		if err != nil {
			return err
		}
		switch {
		case l.URL == "" || f.history != "": // the lab's page has no history
		case f.page != "":
			return errors.New("--page requires --cluster or --server: a lab serves its page itself (nfqproxy lab up --page)")
		default:
			return f.show(stdout, l, "the page of the lab")
		}
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	c := flowapi.Config{Page: web.Handler(), Token: rand.Text(), Log: log}
	var views viewapi.Config
	if c.Observer, views.Doctor, err = f.observe(ctx, connect, cluster, stderr); err != nil {
		return err
	}
	if client, ok := c.Observer.(*remote.Client); ok { // of a server, which may be a lab's
		views.Requester, views.Lab = client, client
	}
	c.Routes = viewapi.Routes(views)
	c.Balancing, _ = c.Observer.(observe.Balancing)
	if f.history != "" {
		h, err := openHistory(f.history, stderr)
		if err != nil {
			return err
		}
		known := &changedTopology{c.Observer, func(t *observe.Topology) { t.HasHistory = true }}
		c.Observer = &withHistory{known, h}
	}
	if _, err := c.Observer.Topology(ctx); err != nil { // before a page with the error only is opened
		return err
	}
	l, err := viewapi.ListenPage(f.page)
	if err != nil {
		return err
	}
	if err := f.show(stdout, lab.FlowAPIStatus{URL: "http://" + l.Addr().String(), Token: c.Token}, "the page, until Ctrl-C"); err != nil {
		return errors.Join(err, l.Close())
	}
	return flowapi.New(c).Serve(ctx, l)
}

// observe returns what the page shows.
func (f *webFlags) observe(ctx context.Context, connect connector, cluster bool, stderr io.Writer) (observe.Observer, viewapi.Doctor, error) {
	o, err := f.server.observer(ctx, connect, stderr)
	if err != nil {
		return nil, nil, err
	}
	if !cluster {
		d, err := findings.Of(ctx, o)
		return o, d, err
	}
	d := &findings.Doctor{Observer: o}
	objects := &recentObjects{list: func(ctx context.Context) (*kube.Objects, error) {
		return listObjects(ctx, f.server.kubeconfig, f.server.daemons.context)
	}}
	if _, _, err := objects.get(ctx); err != nil {
		fmt.Fprintln(stderr, "nfqproxy: warning: the page cannot answer why questions: the objects of the cluster are not known:", err)
		return o, d, nil
	}
	d.Objects = objects.get
	return &changedTopology{o, func(t *observe.Topology) { t.CanWhy = true }}, d, nil
}

// show prints the address of a page, and opens it.
func (f *webFlags) show(stdout io.Writer, l lab.FlowAPIStatus, what string) error {
	if _, err := fmt.Fprintf(stdout, "%s: %s\n", what, l.Page()); err != nil {
		return err
	}
	if !f.noOpen {
		openPage(l.Page())
	}
	return nil
}

// openPage opens a page in the user's browser, if there is one.
func openPage(url string) {
	var cmd *exec.Cmd
	switch runtime.GOOS {
	case "darwin":
		cmd = exec.Command("open", url)
	case "windows":
		cmd = exec.Command("rundll32", "url.dll,FileProtocolHandler", url)
	default:
		cmd = exec.Command("xdg-open", url)
	}
	if cmd.Start() == nil { // the address is printed anyway
		go func() { _ = cmd.Wait() }()
	}
}

// objectsFor is how long objects of the API server count as new: a page requests findings all the time, and
// lists of a large cluster are costly.
const objectsFor = 30 * time.Second

// recentObjects are the objects of an API server. It is safe for concurrent use.
type recentObjects struct {
	list func(context.Context) (*kube.Objects, error)

	mu      sync.Mutex
	listed  time.Time
	objects *manifest.Objects
}

func (r *recentObjects) get(ctx context.Context) (*manifest.Objects, servicetable.NodeConfig, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.objects == nil || time.Since(r.listed) > objectsFor {
		objects, err := r.list(ctx)
		if err != nil {
			return nil, servicetable.NodeConfig{}, err
		}
		r.objects, r.listed = &manifest.Objects{Objects: *objects}, time.Now()
	}
	config := proxyconfig.Default().Node
	kubeproxyconfig.Of(&r.objects.Objects).Complete(&config)
	return r.objects, config, nil
}
