package yamlfile

import (
	"hash/maphash"
	"reflect"
	"strings"
)

// shared gives equal texts the same memory: the objects of a cluster repeat the names of
// nodes, zones and namespaces millions of times. It remembers a fixed number of texts.
// What it gives is read only, also behind pointers. The zero value is ready.
type shared struct {
	seed  maphash.Seed
	slots []*string
}

const (
	sharedSlots = 1 << 14
	// longestShared is the length of the longest texts that are worth it, in bytes: a
	// node's name has at most 253.
	longestShared = 256
)

var sharedBools = map[bool]*bool{false: new(bool), true: new(true)}

// slot returns a pointer to a text that is equal.
func (c *shared) slot(s string) *string {
	if c.slots == nil {
		c.seed, c.slots = maphash.MakeSeed(), make([]*string, sharedSlots)
	}
	slot := &c.slots[maphash.String(c.seed, s)%sharedSlots]
	if *slot == nil || **slot != s {
		*slot = new(strings.Clone(s)) // s may be a part of a large text
	}
	return *slot
}

// text returns an equal text.
func (c *shared) text(s string) string {
	if len(s) > longestShared {
		return strings.Clone(s)
	}
	return *c.slot(s)
}

// pointer returns a pointer to a value of the type, if it is a text or a bool.
func (c *shared) pointer(value any, t reflect.Type) (reflect.Value, bool) {
	switch v := value.(type) {
	case string:
		if t.Kind() == reflect.String && len(v) <= longestShared {
			return reflect.ValueOf(c.slot(v)).Convert(reflect.PointerTo(t)), true
		}
	case bool:
		if t.Kind() == reflect.Bool {
			return reflect.ValueOf(sharedBools[v]).Convert(reflect.PointerTo(t)), true
		}
	}
	return reflect.Value{}, false
}
