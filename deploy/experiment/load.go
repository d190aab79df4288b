package experiment

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// Experiment is an experiment that can be run.
type Experiment struct {
	*Spec
	// File is the file's text.
	File []byte
	// Scripts are the balancing scripts that it names, and those of its lab. Read only.
	Scripts []*script.Script
	// Own are algorithms of the program that runs the experiment. Read only.
	Own []balance.Entry
	// Inputs are the other files that it names. Read only.
	Inputs []*Input
	// Digest is that of the file and of those that it names.
	Digest string
	// Points are what is simulated, at least one.
	Points []Point
	// Expected are the expected values, without what comes of them.
	Expected []Expectation
}

// At is the point with a name.
func (x *Experiment) At(name string) *Point {
	for i := range x.Points {
		if x.Points[i].Name == name {
			return &x.Points[i]
		}
	}
	return nil
}

// maxFile bounds files, in bytes.
const maxFile = 256 << 20

// Load reads a file, or a shipped experiment by its name. It may name own algorithms besides those of nfqproxy. Cells run at
// the same time, and each makes its own [balance.Algorithm]. The error is of type [yamlfile.Mistakes], or that
// of a file that cannot be read.
func Load(nameOrPath string, own ...balance.Entry) (*Experiment, error) {
	if slices.Contains(labs.Experiments(), nameOrPath) {
		data, err := labs.ExperimentFile(nameOrPath)
		if err != nil {
			return nil, err
		}
		return Parse("experiment "+nameOrPath, ".", data, own...)
	}
	data, err := readFile(nameOrPath)
	switch {
	case os.IsNotExist(err) && !strings.ContainsAny(nameOrPath, "./"):
		return nil, fmt.Errorf("%q is neither a file nor an experiment of nfqproxy%s; its experiments: %s", nameOrPath, nearest.Hint(nameOrPath, labs.Experiments()), strings.Join(labs.Experiments(), ", "))
	case err != nil:
		return nil, err
	}
	dir := filepath.Dir(nameOrPath)
	p := newReader(nameOrPath, dir)
	p.own = own
	if filepath.Base(nameOrPath) == FileExperiment {
		_, err := os.Stat(filepath.Join(dir, FileRun))
		p.kept = err == nil
	}
	return p.experiment(data)
}

func readFile(path string) ([]byte, error) {
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // a device may have no end
		return nil, fmt.Errorf("%s is not a file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s is larger than %d MiB", path, maxFile>>20)
	}
	return os.ReadFile(path)
}

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Parse reads the text of a file; name is for messages, and the files that it names are relative to a
// directory.
func Parse(name, dir string, data []byte, own ...balance.Entry) (*Experiment, error) {
	p := newReader(name, dir)
	p.own = own
	return p.experiment(data)
}

func (p *reader) experiment(data []byte) (*Experiment, error) {
	x := &Experiment{Spec: new(Spec), File: data}
	p.digest.Write(data)
	p.Decode(data, Kind, x.Spec)
	if len(p.Mistakes) == 0 {
		p.spec(x.Spec)
	}
	if len(p.Mistakes) == 0 {
		x.Points = p.points(data, x.Spec)
	}
	if len(p.Mistakes) == 0 {
		x.Expected = p.expect(x.Spec, x.Points)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	x.Scripts, x.Own, x.Inputs = p.scripts, p.own, p.inputs
	x.Digest = hex.EncodeToString(p.digest.Sum(nil))
	return x, nil
}

// points makes the simulation of each point. It ends at the first one with mistakes.
func (p *reader) points(data []byte, s *Spec) (all []Point) {
	const maxEndpoints = 4 * traffic.MaxEndpoints // all points are in memory
	endpoints := 0
	for _, name := range s.points() {
		at := s
		if name != "" {
			at = p.at(data, s, name)
		}
		var config *traffic.Config
		if len(p.Mistakes) == 0 {
			config = p.config(at)
		}
		if len(p.Mistakes) == 0 {
			p.validate(config)
		}
		if len(p.Mistakes) > 0 {
			for _, m := range p.Mistakes {
				if name != "" {
					m.Err = fmt.Errorf("with %s: %w", name, m.Err)
				}
			}
			return nil
		}
		for i := range config.Cluster.Services {
			endpoints += len(config.Cluster.Services[i].Endpoints)
		}
		if len(s.Sweep) > 0 && endpoints > maxEndpoints {
			p.Fail("sweep", "want at most %d endpoints in all combinations of values together", maxEndpoints)
			return nil
		}
		all = append(all, Point{name, config, at.Warmup.MSER})
	}
	return all
}

// parseSpec reads the text of a file without those that it names, as a directory of results has it.
func parseSpec(name string, data []byte) (*Spec, error) {
	s, p := new(Spec), newReader(name, "")
	p.withoutScripts = true
	if p.Decode(data, Kind, s); len(p.Mistakes) == 0 {
		p.spec(s)
	}
	return s, p.Err()
}

// Title is the title of a shipped experiment. It reads the file only: [Load] computes the expected values, which takes longer.
func Title(name string) (string, error) {
	data, err := labs.ExperimentFile(name)
	if err != nil {
		return "", err
	}
	s, err := parseSpec("experiment "+name, data)
	return s.Title, err
}

// reader reads a file, and those that it names.
type reader struct {
	yamlfile.File
	dir     string
	digest  hash.Hash // what is read
	scripts []*script.Script
	inputs  []*Input
	own     []balance.Entry
	// kept: the file is in the directory of results, and so are the files that it names. sealed: none is read from elsewhere, but those
	// that are too large to be kept from the directory large. withoutScripts: they are not read, and algorithms may
	// be unknown: those of another program.
	kept, sealed, withoutScripts bool
	large                        string
}

func newReader(name, dir string) *reader {
	p := &reader{File: yamlfile.File{Name: name}, dir: dir, digest: sha256.New()}
	p.Decoder.ListFields = true
	p.Decoder.Formats = map[reflect.Type]yamlfile.Format{
		reflect.TypeFor[SweepValue](): {Want: "a number or a text", Read: sweepValue},
		reflect.TypeFor[Amount]():     {Want: "a number, a time with its unit, or a percentage", Read: amount},
		reflect.TypeFor[Warmup]():     yamlfile.TextFormat("a time with its unit, such as 30s or 5ms, or "+mser, warmup),
	}
	return p
}

// spec checks the fields that do not belong to the simulation, and sets defaults.
func (p *reader) spec(s *Spec) {
	p.Want("metadata.name", validName.MatchString(s.Metadata.Name), "want lower-case letters, digits and hyphens, 1 to 63")
	p.Want("title", !strings.ContainsAny(s.Title, "\n\r"), "want one line")
	p.Want("algorithms", len(s.Algorithms) > 0, "missing: want one or more, such as [random, lc]")
	for i := range s.Algorithms {
		field := fmt.Sprintf("algorithms[%d]", i)
		plain, second := strings.CutSuffix(s.Algorithms[i], traffic.SecondChance)
		a, ok := p.algorithm(field, plain)
		if second {
			a += traffic.SecondChance
		}
		s.Algorithms[i] = a
		p.Want(field, !ok || a != "" && slices.Index(s.Algorithms, a) == i, "want each algorithm only once")
	}
	for i := range s.Cluster.Services {
		algorithm := &s.Cluster.Services[i].Algorithm
		*algorithm, _ = p.algorithm(fmt.Sprintf("cluster.services[%d].algorithm", i), *algorithm)
	}
	if s.Seeds == 0 {
		s.Seeds = defaultSeeds
	}
	if s.Repeats == 0 {
		s.Repeats = defaultRepeats
	}
	p.Want("batches", s.Batches == 0 || s.Batches > 1 && s.Batches <= maxBatches, "want 2 to %d", maxBatches)
	p.checkUntil(s)
	p.checkSweep(s.Sweep)
	if len(p.Mistakes) == 0 {
		p.checkExpect(s)
	}
	for i, c := range s.Columns {
		p.metric(fmt.Sprintf("columns[%d]", i), c, s)
	}
}

// config makes the simulation.
func (p *reader) config(s *Spec) *traffic.Config {
	c := &traffic.Config{Workload: s.Workload, Events: s.Events, Duration: s.Duration, Warmup: s.Warmup.Time, Window: s.Window}
	c.Cluster.Propagation = s.Cluster.Propagation
	if s.Cluster.Lab != "" {
		p.lab(&s.Cluster, &c.Cluster)
	} else {
		p.generate(&s.Cluster, &c.Cluster)
	}
	if len(p.Mistakes) > 0 {
		return c
	}
	p.values(&c.Workload.Work, "workload.work")
	p.values(c.Workload.Idle, "workload.idle")
	if q := c.Workload.Requests; q != nil {
		p.values(q.Think, "workload.requests.think")
		p.values(q.Backoff, "workload.requests.backoff")
	}
	p.values(c.Cluster.Propagation, "cluster.propagation")
	p.arrivals(c)
	return c
}

// generate makes the nodes and services of a generated cluster.
func (p *reader) generate(from *Cluster, into *traffic.Cluster) {
	p.Want("cluster.concurrency", from.Concurrency == 0 && from.Backlog == nil, "only for endpoints of a lab file: here each of cluster.services has its own")
	p.Want("cluster.nodes", from.Nodes > 0 && from.Nodes <= traffic.MaxNodes, "want 1 to %d, or a lab", traffic.MaxNodes)
	p.Want("cluster.zones", from.Zones <= max(from.Nodes, 0), "want at most as many zones as nodes")
	services, endpoints := 0, 0
	names := make(map[string]bool)
	for i := range from.Services {
		s, at := &from.Services[i], fmt.Sprintf("cluster.services[%d]", i)
		namespace := orElse(s.Namespace, "default")
		p.Want(at+".name", validName.MatchString(s.Name) && !names[namespace+"/"+s.Name], "want lower-case letters, digits and hyphens, 1 to 63, and a name that no other has")
		names[namespace+"/"+s.Name] = true
		p.Want(at+".namespace", validName.MatchString(namespace), "want lower-case letters, digits and hyphens")
		p.Want(at+".endpoints", s.Endpoints > 0 && s.Endpoints <= traffic.MaxEndpoints, "want 1 to %d", traffic.MaxEndpoints)
		services += orElse(s.Count, 1)
		endpoints += orElse(s.Count, 1) * s.Endpoints
	}
	p.Want("cluster.services", services > 0 && services <= traffic.MaxServices, "want 1 to %d services, not %d", traffic.MaxServices, services)
	p.Want("cluster.services", endpoints <= traffic.MaxEndpoints, "want at most %d endpoints in all, not %d", traffic.MaxEndpoints, endpoints)
	if len(p.Mistakes) > 0 {
		return
	}
	into.Nodes = traffic.Generate(from.Nodes, orElse(from.Zones, 1))
	made := 0
	for i := range from.Services {
		s := &from.Services[i]
		for k := range orElse(s.Count, 1) {
			one := traffic.Service{
				Namespace: orElse(s.Namespace, "default"), Name: s.Name, ClusterIP: traffic.ServiceAddr(len(into.Services)), Port: 80,
				Algorithm: s.Algorithm, Concurrency: orElse(s.Concurrency, 1), Backlog: backlog(s.Backlog), SameZone: s.SameZone,
			}
			if s.Count > 1 {
				one.Name = s.Name + "-" + strconv.Itoa(k+1)
			}
			for e := range s.Endpoints {
				weight := uint16(1)
				if len(s.Weights) > 0 {
					weight = s.Weights[e%len(s.Weights)]
				}
				one.Endpoints = append(one.Endpoints, traffic.Endpoint{AddrPort: traffic.EndpointAddr(made), Node: made % from.Nodes, Weight: weight})
				made++
			}
			into.Services = append(into.Services, one)
		}
	}
}

func backlog(given *int) int {
	if given == nil {
		return DefaultBacklog
	}
	return *given
}

func orElse[T comparable](v, byDefault T) T {
	if v == *new(T) {
		return byDefault
	}
	return v
}

// validate lets the simulation check its part. The services are generated, so a mistake in one concerns all of them.
func (p *reader) validate(c *traffic.Config) {
	for _, problem := range c.Validate() {
		field := problem.Field
		if strings.HasPrefix(field, "cluster.services[") {
			field = "cluster.services"
		}
		p.Fail(field, "%s", problem.Text)
		if len(p.Mistakes) >= 20 {
			return
		}
	}
}

// relative is the path of a file that the file names.
func (p *reader) relative(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(p.dir, path)
}

// values reads the times of an empirical distribution.
func (p *reader) values(d *traffic.Distribution, field string) {
	if d == nil || d.File == "" {
		return
	}
	p.Want(field+".values", len(d.Values) == 0, "values and file cannot be used together")
	p.lines(d.File, field+".file", func(_ int, line string) error {
		v, err := time.ParseDuration(line)
		if err != nil {
			return errors.New("want a time with its unit, such as 30s or 5ms")
		}
		d.Values = append(d.Values, v)
		return nil
	})
}
