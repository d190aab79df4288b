// Command plot draws what bench/compare measured, against the number of services:
//
//	go run . RESULTS.csv OUT.svg
//
// It is a module of its own, so that drawing adds nothing to the product's go.mod.
package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: plot RESULTS.csv OUT.svg")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// panel is one diagram.
type panel struct {
	title, y          string
	measure, quantity string
}

var panels = []panel{
	{"Connect latency, one worker (median)", "µs", "tcp, 1 workers, short timeouts", "p50"},
	{"From an EndpointSlice change to the first connection that obeys (median)", "ms", "change", "until obeyed"},
}

// look is how a contestant is drawn.
type look struct {
	name   string
	color  color.RGBA
	width  vg.Length
	dashes []vg.Length
}

// looks are those that are drawn, if they were measured: variants would hide one another.
var looks = []look{
	{"nfqproxy", color.RGBA{0xc0, 0x20, 0x20, 0xff}, 2.2, nil},
	{"accept-2q", color.RGBA{0x60, 0x60, 0x60, 0xff}, 1, []vg.Length{4, 3}},
	{"iptables-legacy", color.RGBA{0xe0, 0x8a, 0x00, 0xff}, 1.4, nil},
	{"iptables-nft", color.RGBA{0x8a, 0x4f, 0xb0, 0xff}, 1.4, nil},
	{"nftables", color.RGBA{0x1b, 0x7f, 0x5c, 0xff}, 1.4, nil},
	{"direct", color.RGBA{0x30, 0x60, 0xc0, 0xff}, 1, []vg.Length{1, 3}},
}

func run(in, out string) error {
	s, err := read(in)
	if err != nil {
		return err
	}
	const width, height = 18 * vg.Centimeter, 11 * vg.Centimeter
	canvas := vgsvg.New(width, height*vg.Length(len(panels)))
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: vg.Centimeter, PadTop: vg.Centimeter / 4, PadBottom: vg.Centimeter / 4, PadLeft: vg.Centimeter / 4, PadRight: vg.Centimeter}
	for row, p := range panels {
		diagram, err := s.draw(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.title, err)
		}
		diagram.Draw(tiles.At(draw.New(canvas), 0, row))
	}
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(file)
	return errors.Join(err, file.Close())
}

// series are values by measure and quantity, contestant and number of services.
type series struct {
	values map[[3]string]map[float64][]float64
}

func read(path string) (*series, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &series{values: make(map[[3]string]map[float64][]float64)}
	for _, r := range rows[min(1, len(rows)):] {
		if len(r) != 7 {
			return nil, fmt.Errorf("%s: want 7 columns, as compare writes them", path)
		}
		services, err1 := strconv.ParseFloat(r[0], 64)
		value, err2 := strconv.ParseFloat(r[6], 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		key := [3]string{r[2], r[3], r[1]}
		if s.values[key] == nil {
			s.values[key] = make(map[float64][]float64)
		}
		s.values[key][services] = append(s.values[key][services], value)
	}
	return s, nil
}

// draw draws one line for each contestant, both axes logarithmic.
func (s *series) draw(p panel) (*plot.Plot, error) {
	diagram := plot.New()
	diagram.Title.Text, diagram.X.Label.Text, diagram.Y.Label.Text = p.title, "services", p.y
	diagram.X.Scale, diagram.Y.Scale = plot.LogScale{}, plot.LogScale{}
	diagram.X.Tick.Marker, diagram.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	diagram.Legend.Top, diagram.Legend.Left = true, true
	diagram.Title.TextStyle.Font.Size, diagram.Legend.TextStyle.Font.Size = 11, 9
	diagram.Title.Padding, diagram.Legend.Padding = 6, 3
	diagram.Add(plotter.NewGrid())
	least, most := math.Inf(1), math.Inf(-1)
	for _, l := range looks {
		var points plotter.XYs
		for services, values := range s.values[[3]string{p.measure, p.quantity, l.name}] {
			slices.Sort(values)
			n := len(values)
			y := (values[(n-1)/2] + values[n/2]) / 2
			if y > 0 {
				points = append(points, plotter.XY{X: services, Y: y})
				least, most = min(least, y), max(most, y)
			}
		}
		if len(points) == 0 {
			continue
		}
		slices.SortFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) })
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width, line.Dashes = l.color, l.width, l.dashes
		dots.Color, dots.Shape = l.color, draw.CircleGlyph{}
		diagram.Add(line, dots)
		diagram.Legend.Add(l.name, line)
	}
	if least > most {
		return nil, errors.New("no measurements")
	}
	// Whole decades; the legend needs half of one above all lines.
	diagram.Y.Min, diagram.Y.Max = math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most)))
	if most > diagram.Y.Max/3 {
		diagram.Y.Max *= 10
	}
	diagram.X.Min, diagram.X.Max = 0.8, max(diagram.X.Max, 10)*1.25
	return diagram, nil
}
