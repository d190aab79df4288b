package nftables

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// dump is all that a value has, line by line, so that two can be compared and their difference be seen. Fields in leaveOut are
// left out, and numbers are compared as such: JSON has 16 where the text has 0x00000010.
func dump(v interface{}, leaveOut ...string) string {
	d := &dumper{leaveOut: leaveOut}
	d.value("", reflect.ValueOf(v), 0)
	return d.String()
}

type dumper struct {
	strings.Builder
	leaveOut []string
}

// onlyText are the fields that only the text has; the package's documentation names them.
var onlyText = []string{"Position", "Line", "Text", "Slash", "Spelled", "To", "PriorityText", "Count", "Joined", "Seconds", "Check", "Implied", "Bare", "Typed", "Commented", "Err", "Warning"}

func (d *dumper) value(name string, v reflect.Value, depth int) {
	indent := strings.Repeat("  ", depth)
	if v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	if l, ok := v.Interface().(Literal); ok {
		if n, ok := l.Number(); ok {
			fmt.Fprintf(d, "%s%s: number %d\n", indent, name, n)
		} else {
			fmt.Fprintf(d, "%s%s: %q %d\n", indent, name, l.Text, l.Kind)
		}
		return
	}
	if t, ok := v.Interface().(time.Duration); ok {
		if t != 0 {
			fmt.Fprintf(d, "%s%s: %s\n", indent, name, t)
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		fmt.Fprintf(d, "%s%s: %s\n", indent, name, v.Type().Name())
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if slices.Contains(d.leaveOut, v.Type().Name()+"."+f.Name) {
				continue
			}
			// The text of an Unknown, or an Unread, is all it has.
			if slices.Contains(d.leaveOut, f.Name) && !(f.Name == "Text" && v.Type().Name() != "Rule") {
				continue
			}
			d.value(f.Name, v.Field(i), depth+1)
		}
	case reflect.Slice:
		if v.Len() == 0 {
			return
		}
		fmt.Fprintf(d, "%s%s: %s of %d\n", indent, name, v.Type().Name(), v.Len())
		for i := range v.Len() {
			d.value(fmt.Sprint(i), v.Index(i), depth+1)
		}
	default:
		if !v.IsZero() {
			fmt.Fprintf(d, "%s%s: %v\n", indent, name, v.Interface())
		}
	}
}

// firstDifference is where two texts differ, with some lines in front.
func firstDifference(a, b string) string {
	if a == b {
		return ""
	}
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	i := 0
	for i < len(x) && i < len(y) && x[i] == y[i] {
		i++
	}
	from := max(0, i-6)
	return fmt.Sprintf("line %d:\n%s\n--- and\n%s", i+1, strings.Join(x[from:min(len(x), i+6)], "\n"), strings.Join(y[from:min(len(y), i+6)], "\n"))
}
