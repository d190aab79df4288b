package script

import (
	"fmt"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// The bounds of a policy. Starlark counts the instructions of its interpreter, but one instruction may
// take any time and any memory: "x" * 1000000000, a comparison of lists of lists. [guard] therefore
// has the operands of such instructions measured first: measuring counts as steps, and values have a
// largest size.
const (
	maxSource = 32 << 10 // bytes of a file
	maxSteps  = 50_000   // of one call
	// Of a value that an operator or a function works on.
	maxValues = 16_384 // of a list or dict, with all inside
	maxString = 4096   // bytes
	maxBits   = 4096   // of an integer
	// Of the state between two calls.
	maxStateValues = 10_000
	maxStateBytes  = 1 << 20
	// chunk is how many bytes, or elements that are only copied, count as a step.
	chunk = 16
)

// size is the size of a value with all inside. Values that are inside twice count twice, as they do
// for what works on them.
type size struct {
	values, bytes       int
	maxValues, maxBytes int
	stored              bool // only what a state may have
}

func (s *size) add(v starlark.Value) error {
	s.values++
	switch v := v.(type) {
	case starlark.NoneType, starlark.Bool, starlark.Float:
	case starlark.Int:
		if _, small := v.Int64(); !small {
			if bits := v.BigInt().BitLen(); bits > maxBits {
				return fmt.Errorf("an integer of %d bits; at most %d", bits, maxBits)
			}
			s.bytes += maxBits / 8
		}
	case starlark.String:
		if len(v) > maxString {
			return fmt.Errorf("a string of %d bytes; at most %d", len(v), maxString)
		}
		s.bytes += len(v)
	case *starlark.List:
		return s.all(v.Len(), v.Index)
	case *starlark.Dict:
		if s.values+2*v.Len() > s.maxValues {
			return s.tooMany()
		}
		for k, e := range v.Entries() {
			if err := s.add(k); err != nil {
				return err
			}
			if err := s.add(e); err != nil {
				return err
			}
		}
	default:
		if s.stored {
			return fmt.Errorf("a value of type %s; want strings, numbers, bools, None, lists and dicts", v.Type())
		}
		switch v := v.(type) {
		case starlark.Tuple:
			return s.all(v.Len(), v.Index)
		case starlark.Sequence: // a range
			s.values += v.Len()
		}
	}
	if s.values > s.maxValues || s.bytes > s.maxBytes {
		return s.tooMany()
	}
	return nil
}

func (s *size) all(n int, at func(int) starlark.Value) error {
	if s.values+n > s.maxValues {
		return s.tooMany()
	}
	for i := range n {
		if err := s.add(at(i)); err != nil {
			return err
		}
	}
	return nil
}

func (s *size) tooMany() error {
	return fmt.Errorf("a value with more than %d values or %d bytes inside", s.maxValues, s.maxBytes)
}

// measure measures a value that something works on, and returns the steps that count for it.
func measure(v starlark.Value) (steps int, err error) {
	s := size{maxValues: maxValues, maxBytes: chunk * maxValues}
	err = s.add(v)
	return s.values - 1 + s.bytes/chunk, err
}

// guards are functions that stand for operators and around operands: see [guard].
var guards = starlark.StringDict{}

func init() {
	for name, of := range map[string]func(t *starlark.Thread, args starlark.Tuple) (starlark.Value, error){
		guardWhole: func(t *starlark.Thread, args starlark.Tuple) (starlark.Value, error) {
			return args[0], charge(t, args[0])
		},
		guardTop:    top,
		guardNumber: number,
		guardTimes:  times,
		guardMod:    mod,
		guardIn:     in,
	} {
		guards[name] = starlark.NewBuiltin(name, func(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			return of(t, args)
		})
	}
}

// charge counts the steps of values that something works on.
func charge(t *starlark.Thread, values ...starlark.Value) error {
	for _, v := range values {
		n, err := measure(v)
		if err != nil {
			return err
		}
		t.Steps += uint64(n)
	}
	return nil
}

// top counts the steps of a value whose elements are copied, but not looked into.
func top(t *starlark.Thread, args starlark.Tuple) (starlark.Value, error) {
	n := starlark.Len(args[0])
	if n > maxValues {
		return nil, fmt.Errorf("a %s of %d elements; at most %d", args[0].Type(), n, maxValues)
	}
	t.Steps += uint64(max(n, 0) / chunk)
	return args[0], nil
}

// number is y of x += y.
func number(_ *starlark.Thread, args starlark.Tuple) (starlark.Value, error) {
	switch y := args[0].(type) {
	case starlark.Float:
		return y, nil
	case starlark.Int:
		if _, small := y.Int64(); small {
			return y, nil
		}
	}
	return nil, fmt.Errorf("+= and -= are for numbers of up to 64 bits, not for type %s: use x = x + y, or append", args[0].Type())
}

// times is x * y.
func times(t *starlark.Thread, args starlark.Tuple) (starlark.Value, error) {
	if err := charge(t, args...); err != nil {
		return nil, err
	}
	for i, v := range args {
		n, isInt := args[1-i].(starlark.Int)
		if length := starlark.Len(v); isInt && length > 0 {
			k, small := n.Int64()
			if !small || k > int64(maxString/length) {
				return nil, fmt.Errorf("a repetition to %s * %d elements or bytes; at most %d", n, length, maxString)
			}
			t.Steps += uint64(max(k, 0)) * uint64(length) / chunk
		}
	}
	return starlark.Binary(syntax.STAR, args[0], args[1])
}

// mod is x % y: the rest of a division, or a format. Formats may have the same operand several times.
func mod(t *starlark.Thread, args starlark.Tuple) (starlark.Value, error) {
	if err := charge(t, args...); err != nil {
		return nil, err
	}
	if format, ok := args[0].(starlark.String); ok {
		n, _ := measure(args[1])
		if n = (n + 1) * strings.Count(string(format), "%"); n > maxValues {
			return nil, fmt.Errorf("operands of a format that are too long")
		}
		t.Steps += uint64(n)
	}
	return starlark.Binary(syntax.PERCENT, args[0], args[1])
}

// in is x in y. To look into a dict depends on the key only.
func in(t *starlark.Thread, args starlark.Tuple) (starlark.Value, error) {
	if err := charge(t, args[0]); err != nil {
		return nil, err
	}
	if _, ok := args[1].(*starlark.Dict); !ok {
		if err := charge(t, args[1]); err != nil {
			return nil, err
		}
	}
	return starlark.Binary(syntax.IN, args[0], args[1])
}
