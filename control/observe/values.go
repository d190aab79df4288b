package observe

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Values returns the set fields as parameters of the flow API.
func (q FlowQuery) Values() url.Values { return values(q) }

// Values returns the set fields as parameters of the flow API.
func (q ServiceQuery) Values() url.Values { return values(q) }

// FlowQueryOf reads parameters of the flow API. Each must be known and given once; follow and
// steps without a value mean true. [FlowQuery.Parse] validates the values. The error is an
// [*Error].
func FlowQueryOf(v url.Values) (FlowQuery, error) { return queryOf[FlowQuery](v) }

// ServiceQueryOf reads parameters of the flow API, as [FlowQueryOf] does.
func ServiceQueryOf(v url.Values) (ServiceQuery, error) { return queryOf[ServiceQuery](v) }

// NoValues rejects parameters where none are defined.
func NoValues(v url.Values) error {
	_, err := queryOf[struct{}](v)
	return err
}

// AfterOf reads the parameter after of the flow API, a hold's generation, as [FlowQueryOf]
// does; 0: not given.
func AfterOf(v url.Values) (uint64, error) {
	q, err := queryOf[struct{ After string }](v)
	if err != nil || q.After == "" {
		return 0, err
	}
	n, err := strconv.ParseUint(q.After, 10, 64)
	if err != nil {
		return 0, badParameter("after", "after %q: want a generation of the hold, a number", q.After)
	}
	return n, nil
}

// ServiceOf reads the parameter service of the flow API, NAMESPACE/NAME; empty: not given.
func ServiceOf(v url.Values) (string, error) {
	q, err := queryOf[struct{ Service string }](v)
	if err != nil || q.Service == "" {
		return "", err
	}
	c := BalanceChange{Service: q.Service}
	_, _, err = c.Name()
	return q.Service, err
}

// parameter is the name of a query's field in the flow API.
func parameter(f reflect.StructField) string { return strings.ToLower(f.Name) }

// values and queryOf support the two types of fields in queries: bool and string.
func values(q any) url.Values {
	v := make(url.Values)
	r := reflect.ValueOf(q)
	for i := range r.NumField() {
		switch name, f := parameter(r.Type().Field(i)), r.Field(i); {
		case f.IsZero():
		case f.Kind() == reflect.Bool:
			v.Set(name, "true")
		default:
			v.Set(name, f.String())
		}
	}
	return v
}

func queryOf[Q any](v url.Values) (Q, error) {
	var q, none Q
	r := reflect.ValueOf(&q).Elem()
	var known []string
	for i := range r.NumField() {
		known = append(known, parameter(r.Type().Field(i)))
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		i := slices.Index(known, name)
		switch {
		case i < 0 && len(known) == 0:
			return none, badParameter(name, "parameter %q: this path has no parameters", name)
		case i < 0:
			return none, badParameter(name, "parameter %q: want %s", name, strings.Join(known, ", "))
		case len(v[name]) > 1:
			return none, badParameter(name, "%s is given %d times: give it once, a list with commas", name, len(v[name]))
		}
		text := v.Get(name)
		if f := r.Field(i); f.Kind() == reflect.String {
			f.SetString(text)
			continue
		}
		switch text {
		case "", "true":
			r.Field(i).SetBool(true)
		case "false":
		default:
			return none, badParameter(name, "%s %q: want true or false", name, text)
		}
	}
	return q, nil
}

func badParameter(name, format string, a ...any) error {
	return &Error{http.StatusBadRequest, name, fmt.Sprintf(format, a...)}
}
