package experiment_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// parquetOf writes rows.
func parquetOf[T any](t testing.TB, rows ...T) string {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b, parquet.MaxRowsPerRowGroup(2)) // several groups
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

type (
	fullRow struct {
		Time    time.Time `parquet:"time,timestamp(microsecond)"`
		Service *string   `parquet:"service,optional"`
		Work    *float64  `parquet:"work,optional"`
	}
	numberRow struct {
		Begin int64 `parquet:"begin"`
		Took  int32 `parquet:"took"`
	}
	secondsRow struct {
		Time float32 `parquet:"time"`
		Text string  `parquet:"text"`
		Many []int64 `parquet:"many"`
		Lost *int64  `parquet:"lost,optional"`
	}
)

// tarGz is a compressed archive with a file.
func tarGz(t testing.TB, name, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	err := w.WriteHeader(&tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o755})
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))})
	}
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err != nil || w.Close() != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return b.String()
}

// traceFiles are files with arrivals, by their names.
func traceFiles(t testing.TB) map[string]string {
	web, none, work, late := "web", "none", 0.25, time.UnixMilli(1_700_000_000_500)
	wrong := -1.0
	const calls2021 = ",timestamp,traceid,rpcid,um,rpctype,dm,interface,rt\n" +
		"0,1500,t1,0.1,A,rpc,B,i,30\n" + // seen by the caller
		"1,1503,t1,0.1,A,rpc,B,i,-20\n" + // the same call, by the called
		"2,1000,t2,0.1,A,http,B,i,-7\n" +
		"3,999,t2,0.1,A,http,B,i,9\n" +
		"4,1600,t1,0.1.1,B,db,D,,3\n" +
		"5,1700,t1,0.1.2,B,rpc,C,i,0\n"
	return map[string]string{
		"full.parquet":    parquetOf(t, fullRow{late, &web, &work}, fullRow{late.Add(-time.Second), nil, nil}, fullRow{late.Add(time.Microsecond), nil, &work}),
		"number.parquet":  parquetOf(t, numberRow{5000, 20}, numberRow{4000, 0}, numberRow{7500, 10}),
		"seconds.parquet": parquetOf(t, secondsRow{Time: 0.5, Text: "x"}, secondsRow{Time: 2}),
		"service.parquet": parquetOf(t, fullRow{late, &web, nil}, fullRow{late, nil, nil}, fullRow{late, &none, nil}),
		"wrong.parquet":   parquetOf(t, fullRow{late, &web, &wrong}),
		"empty.parquet":   parquetOf[fullRow](t),
		"damaged.parquet": "PAR1 and nothing else",
		"calls.csv":       calls2021,
		"calls.tar.gz":    tarGz(t, "MSCallGraph_0.csv", calls2021),
		"calls2022.csv":   "timestamp,traceid,service,rpc_id,rpctype,um,uminstanceid,interface,dm,dminstanceid,rt\n  115352,T_1,S_1,0.1,rpc,MS_1,MS_1_POD_0,x,MS_2,MS_2_POD_4,2.5\n",
		"no-rt.csv":       "timestamp,traceid,rpcid,um,rpctype,dm\n1,t,0,A,rpc,B\n",
		"wrong-rt.csv":    "timestamp,traceid,rpcid,rpctype,dm,rt\n1,t,0,rpc,B,1\n2,t,1,rpc,B,soon\n",
		"short.csv":       "timestamp,traceid,rpcid,rpctype,dm,rt\n1,t,0,rpc,B\n",
		"rates.csv":       ",timestamp,msname,msinstanceid,metric,value\n0,120000,B,i1,providerRPC_MCR,2\n1,120000,B,i2,providerRPC_MCR,1\n2,120000,B,i2,providerRPC_RT,99\n3,0,B,i1,providerRPC_MCR,0.5\n4,0,C,i9,providerRPC_MCR,100\n",
		"rates2022.csv":   "timestamp,msname,msinstanceid,nodeid,providerrpc_rt,providerrpc_mcr,http_mcr\n60000,MS_1,P,N,9,0.25,0\n120000,MS_1,P,N,9,0.5,0\n",
		"wrong-rates.csv": "timestamp,msname,metric,value\n0,B,providerRPC_MCR,-2\n",
		"flows.csv":       "0.5\n1,web\n",
	}
}

func arrivalsOf(t *testing.T, dir, arrivals string) (*traffic.Arrivals, error) {
	t.Helper()
	x, err := experiment.Parse("x.yaml", dir, []byte(strings.Replace(small, "process: poisson, rate: 100", arrivals, 1)))
	if err != nil {
		return nil, err
	}
	return &x.Points[0].Config.Workload.Arrivals, nil
}

// TestTraces: flows of Parquet files and of Alibaba's call graphs, in the order of time, from 0 on.
func TestTraces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, traceFiles(t))
	for _, tt := range []struct{ arrivals, want string }{
		{"process: trace, file: full.parquet", "[{0s -1 -1ns} {1s 0 250ms} {1.000001s -1 250ms}]"},
		{"process: trace, file: full.parquet, columns: {work: work, unit: 1ms}", "[{0s -1 -1ns} {1s 0 250µs} {1.000001s -1 250µs}]"},
		{"process: trace, file: number.parquet, columns: {time: begin, work: took, unit: 1ms}", "[{0s -1 0s} {1s -1 20ms} {3.5s -1 10ms}]"},
		{"process: trace, file: number.parquet, columns: {time: begin, unit: 1ms}", "[{0s -1 -1ns} {1s -1 -1ns} {3.5s -1 -1ns}]"},
		{"process: trace, file: seconds.parquet", "[{0s -1 -1ns} {1.5s -1 -1ns}]"},
		{"process: trace, file: calls.csv", "[{0s -1 7ms} {501ms -1 20ms} {701ms -1 0s}]"},
		{"process: trace, file: calls.tar.gz, microservice: B", "[{0s -1 7ms} {501ms -1 20ms}]"},
		{"process: trace, file: calls2022.csv, microservice: MS_2", "[{0s -1 2.5ms}]"},
		{"process: trace, file: flows.csv", "[{500ms -1 -1ns} {1s 0 -1ns}]"},
	} {
		a, err := arrivalsOf(t, dir, tt.arrivals)
		if err != nil || fmt.Sprint(a.Trace) != tt.want {
			t.Errorf("%s: %v, %+v\nwant %s", tt.arrivals, err, a, tt.want)
		}
	}
	for _, tt := range []struct {
		arrivals string
		want     []float64
	}{
		{"process: profile, file: rates.csv, microservice: B, step: 1s", []float64{30, 0, 180}},
		{"process: profile, file: rates.csv", []float64{6030, 0, 180}},
		{"process: profile, file: rates2022.csv, rate: 50", []float64{15, 30}},
	} {
		a, err := arrivalsOf(t, dir, tt.arrivals)
		if err != nil || !slices.Equal(a.Counts, tt.want) {
			t.Errorf("%s: %v, %v\nwant %v", tt.arrivals, err, a, tt.want)
		}
	}
	x, err := experiment.Parse("x.yaml", dir, []byte(strings.Replace(small, "process: poisson, rate: 100", "process: trace, file: calls.tar.gz", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if results, _ := run(t, x); results.Cells[0].Values["flows"] != 3 {
		t.Errorf("%v flows of three calls", results.Cells[0].Values["flows"])
	}
}

// TestTraceMistakes: each names the file, and the line and column, or the row and column.
func TestTraceMistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, traceFiles(t))
	for _, tt := range []struct{ arrivals, want string }{
		{"process: trace, file: service.parquet", `service.parquet: row 3, column service: the cluster has no service "none"`},
		{"process: trace, file: wrong.parquet", "wrong.parquet: row 1, column work: want seconds from 0 to 1e+08, not -1"},
		{"process: trace, file: empty.parquet", "empty.parquet: want 1 to 20000000 rows, not 0"},
		{"process: trace, file: damaged.parquet", "damaged.parquet: the Parquet file is damaged: "},
		{"process: trace, file: number.parquet", "number.parquet: there is no column time: name it in workload.arrivals.columns"},
		{"process: trace, file: full.parquet, columns: {work: size}", "full.parquet: there is no column size: name it"},
		{"process: trace, file: seconds.parquet, columns: {time: text}", `seconds.parquet: row 1, column text: want a number or a time, not "x"`},
		{"process: trace, file: seconds.parquet, columns: {time: many}", "seconds.parquet: column many contains lists"},
		{"process: trace, file: seconds.parquet, columns: {time: lost}", "seconds.parquet: row 1, column lost: want a number or a time"},
		{"process: trace, file: seconds.parquet, columns: {service: time}", "seconds.parquet: row 1, column time: want the name of a service, not"},
		{"process: trace, file: full.parquet, columns: {unit: 48h}", "x.yaml:9: workload.arrivals.columns.unit: want a time from 1ns to 24h"},
		{"process: profile, file: full.parquet", "x.yaml:9: workload.arrivals.file: a Parquet file has single flows: want process: trace"},
		{"process: trace, file: calls.csv, columns: {time: timestamp}", "x.yaml:9: workload.arrivals.columns: calls.csv is not a Parquet file"},
		{"process: poisson, rate: 1, columns: {time: t}", "x.yaml:9: workload.arrivals.columns: want a Parquet file"},
		{"process: poisson, rate: 1, microservice: B", "x.yaml:9: workload.arrivals.microservice: want a file"},
		{"process: trace, file: flows.csv, microservice: B", "x.yaml:9: workload.arrivals.microservice: flows.csv is not a trace of Alibaba's"},
		{"process: trace, file: calls.csv, microservice: D", "x.yaml:9: workload.arrivals.microservice: calls.csv has no call by rpc or http of D"},
		{"process: trace, file: no-rt.csv", "no-rt.csv:1: want a column rt, as in Alibaba's"},
		{"process: trace, file: wrong-rt.csv", `wrong-rt.csv:3: column rt: want a number, not "soon"`},
		{"process: trace, file: short.csv", "short.csv:2: wrong number of fields"},
		{"process: profile, file: rates.csv, microservice: X", "x.yaml:9: workload.arrivals.microservice: rates.csv has no calls by RPC of X"},
		{"process: profile, file: wrong-rates.csv", "wrong-rates.csv:2: column value: want a number of 0 or more, not -2"},
		{"process: trace, file: rates.csv", "rates.csv:1: want a column traceid"},
	} {
		if _, err := arrivalsOf(t, dir, tt.arrivals); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v\nwant %s", tt.arrivals, err, tt.want)
		}
	}
}

// TestDamagedTraces: no damaged file panics.
func TestDamagedTraces(t *testing.T) {
	t.Parallel()
	dir, r := t.TempDir(), rand.New(rand.NewPCG(1, 2))
	for name, text := range traceFiles(t) {
		for i := range 60 {
			damaged := []byte(text)
			for range 1 + i%3 {
				damaged[r.IntN(len(damaged))] = byte(r.Uint32())
			}
			copied := fmt.Sprint(i, name)
			write(t, dir, map[string]string{copied: string(damaged[:len(damaged)-i%2])})
			for _, process := range []string{"trace", "profile"} {
				_, _ = arrivalsOf(t, dir, fmt.Sprintf("process: %s, file: %s", process, copied))
			}
		}
	}
}
