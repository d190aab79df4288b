package experiment

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

const fieldFile = "workload.arrivals.file"

// maxTrace is the largest number of flows of a trace, which are in memory.
const maxTrace = 20_000_000

// arrivals reads the file of the arrivals.
func (p *reader) arrivals(c *traffic.Config) {
	a := &c.Workload.Arrivals
	p.Want("workload.arrivals.microservice", a.Microservice == "" || a.File != "", "want a file with Alibaba's microservices")
	p.Want("workload.arrivals.columns", a.Columns == nil || a.File != "", "want a Parquet file")
	if a.Columns != nil {
		p.Want("workload.arrivals.columns.unit", a.Columns.Unit >= 0 && a.Columns.Unit <= 24*time.Hour, "want a time from 1ns to 24h")
	}
	if a.File == "" || a.Process != "trace" && a.Process != "profile" || len(p.Mistakes) > 0 { // the simulation checks the rest
		return
	}
	data, _, ok := p.input(a.File, fieldFile)
	if !ok {
		return
	}
	path := a.File
	isParquet := bytes.HasPrefix(data, []byte(parquetMagic))
	p.Want("workload.arrivals.columns", a.Columns == nil || isParquet, "%s is not a Parquet file, and has no columns to name", a.File)
	in, err := plain(data)
	if err != nil {
		p.Fail(fieldFile, "%s: %w", a.File, err)
		return
	}
	text := bufio.NewReaderSize(in, 64<<10)
	header, _ := text.Peek(4 << 10)
	names := headerOf(string(header))
	alibaba := slices.Contains(names, "traceid") || slices.Contains(names, "msname")
	p.Want("workload.arrivals.microservice", a.Microservice == "" || alibaba, "%s is not a trace of Alibaba's microservices", a.File)
	profile := a.Process == "profile"
	p.Want("workload.arrivals.counts", !profile || len(a.Counts) == 0, "counts and file cannot be used together")
	switch {
	case isParquet && profile:
		p.Fail(fieldFile, "a Parquet file has single flows: want process: trace")
	case isParquet:
		a.Trace = p.parquetTrace(data, path, a.Columns, &c.Cluster)
	case alibaba && profile:
		a.Counts = p.callRates(text, path, a.Microservice)
	case alibaba:
		a.Trace = p.callGraph(text, path, a.Microservice)
	case profile:
		a.Counts = p.invocations(text, path)
	default:
		a.Trace = p.trace(text, path, &c.Cluster)
	}
}

// plain is the text of a file, which may be compressed: of an archive, that of its first file.
func plain(data []byte) (io.Reader, error) {
	if !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return bytes.NewReader(data), nil
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	text := bufio.NewReaderSize(z, 1<<10)
	const magicAt, magic = 257, "ustar"
	if head, _ := text.Peek(magicAt + len(magic)); len(head) < magicAt+len(magic) || string(head[magicAt:]) != magic {
		return text, nil
	}
	for archive := tar.NewReader(text); ; {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, errors.New("the archive has no file")
		case err != nil:
			return nil, err
		case h.Typeflag == tar.TypeReg:
			return archive, nil
		}
	}
}

// scan calls each for the lines of a text that are neither empty nor comments.
func (p *reader) scan(text io.Reader, path, field string, each func(number int, line string) error) {
	in := bufio.NewScanner(text)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := each(n, line); err != nil {
			p.Mistakes = append(p.Mistakes, &yamlfile.Mistake{File: path, Line: n, Err: err})
			return
		}
	}
	if err := in.Err(); err != nil {
		p.Fail(field, "%w", err)
	}
}

// lines reads a file that a field names, and calls each for its lines that are neither empty nor comments.
func (p *reader) lines(path, field string, each func(number int, line string) error) {
	if data, _, ok := p.input(path, field); ok {
		p.scan(bytes.NewReader(data), path, field, each)
	}
}

// functionColumns are the first columns of invocations_per_function_md.anon.d01.csv of the Azure Functions Trace 2019 (Shahrad et al.,
// Serverless in the Wild, USENIX ATC 2020). The others are 1, 2 and so on: the minutes of a day.
var functionColumns = []string{"HashOwner", "HashApp", "HashFunction", "Trigger"}

// invocations reads the numbers of invocations of all functions in each minute.
func (p *reader) invocations(text io.Reader, path string) (counts []float64) {
	p.scan(text, path, fieldFile, func(_ int, line string) error {
		fields := strings.Split(line, ",")
		if counts == nil {
			if len(fields) <= len(functionColumns) || !slices.Equal(fields[:len(functionColumns)], functionColumns) {
				return fmt.Errorf("want the header %s,1,2,... of the Azure Functions Trace 2019", strings.Join(functionColumns, ","))
			}
			counts = make([]float64, len(fields)-len(functionColumns))
			return nil
		}
		if len(fields) != len(functionColumns)+len(counts) {
			return fmt.Errorf("want %d columns as in the header, not %d", len(functionColumns)+len(counts), len(fields))
		}
		for i, text := range fields[len(functionColumns):] {
			n, err := strconv.ParseUint(text, 10, 32)
			if err != nil {
				return fmt.Errorf("minute %d: want a number of invocations, not %q", i+1, text)
			}
			counts[i] += float64(n)
		}
		return nil
	})
	return counts
}

// servicesByName are the numbers of a cluster's services by their names, with and without their namespace.
func servicesByName(c *traffic.Cluster) map[string]int {
	numbers := make(map[string]int)
	for i := range c.Services {
		numbers[c.Services[i].Namespace+"/"+c.Services[i].Name] = i
		numbers[c.Services[i].Name] = i
	}
	return numbers
}

// trace reads the flows of a trace.
func (p *reader) trace(text io.Reader, path string, c *traffic.Cluster) (flows []traffic.Traced) {
	numbers := servicesByName(c)
	seconds := func(text string) (time.Duration, error) {
		v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		const most = 1e8
		if err != nil || !(v >= 0 && v < most) {
			return 0, fmt.Errorf("want seconds from 0 to 1e8, not %q", text)
		}
		return time.Duration(v * float64(time.Second)), nil
	}
	p.scan(text, path, fieldFile, func(_ int, line string) (err error) {
		f := traffic.Traced{Service: -1, Work: -1}
		parts := strings.Split(line, ",")
		if len(parts) > 3 {
			return errors.New("want SECONDS, SECONDS,SERVICE or SECONDS,SERVICE,SECONDS")
		}
		if f.At, err = seconds(parts[0]); err != nil {
			return err
		}
		if name := ""; len(parts) > 1 && strings.TrimSpace(parts[1]) != "" {
			name = strings.TrimSpace(parts[1])
			n, ok := numbers[name]
			if !ok {
				return fmt.Errorf("the cluster has no service %q", name)
			}
			f.Service = n
		}
		if len(parts) > 2 {
			if f.Work, err = seconds(parts[2]); err != nil {
				return err
			}
		}
		flows = append(flows, f)
		return nil
	})
	return flows
}

// inOrder has the times of flows begin with 0, and puts them in order.
func inOrder(flows []traffic.Traced) []traffic.Traced {
	slices.SortStableFunc(flows, func(a, b traffic.Traced) int { return cmp.Compare(a.At, b.At) })
	for i := len(flows) - 1; i >= 0; i-- {
		flows[i].At -= flows[0].At
	}
	return flows
}
