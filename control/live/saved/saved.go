// Package saved keeps the objects of an API server in a file, for a daemon that starts while the API
// server does not answer.
//
// The file has an object in JSON on each line, with "---" between them: YAML that nfqproxy explain
// --objects reads. Its last line has a hash of the others.
package saved

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// MaxAge is how long the objects of a file are used after they were in force last: then most pods have
// other addresses.
const MaxAge = time.Hour

// maxSize bounds what is read of a file, in bytes: 100,000 endpoints take about 30 MB.
const maxSize = 1 << 30

const (
	separator = "---\n"
	trailer   = "# sha256 "
)

// ErrStale is the error of objects that were in force too long ago.
var ErrStale = errors.New("older than " + MaxAge.String())

// File is the file of one node.
type File struct {
	Path string
	Node string // the name of the node
}

// Write replaces the file by the Services, EndpointSlices and Nodes of an update, which has all objects.
// A process that ends meanwhile leaves the earlier file.
func (f File) Write(u servicetable.Update) (err error) {
	// The same name each time, so that a process that is killed leaves one at most.
	temporary, err := os.OpenFile(f.Path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, temporary.Close(), os.Remove(temporary.Name()))
		}
	}()
	out := bufio.NewWriter(temporary)
	if err := f.encode(out, u); err != nil {
		return err
	}
	if err := errors.Join(out.Flush(), temporary.Sync()); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), f.Path); err != nil {
		return err
	}
	_ = temporary.Close() // it is in place
	return nil
}

// Touch records that the objects are still in force.
func (f File) Touch() error {
	now := time.Now()
	return os.Chtimes(f.Path, now, now)
}

func (f File) encode(w io.Writer, u servicetable.Update) error {
	hash := sha256.New()
	w = io.MultiWriter(w, hash)
	_, err := fmt.Fprintf(w, "# Objects of the API server, as node %s had them last.\n", f.Node)
	encoder := json.NewEncoder(w)
	object := func(o any) { // unless there was an error
		if err == nil {
			_, err = io.WriteString(w, separator)
		}
		if err == nil {
			err = encoder.Encode(o)
		}
	}
	for _, n := range u.Nodes {
		c := *n
		c.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		object(&c)
	}
	for _, s := range u.Services {
		object(s.Object())
	}
	for _, s := range u.EndpointSlices {
		object(s.Object())
	}
	if err == nil {
		_, err = fmt.Fprintf(w, "%s%x\n", trailer, hash.Sum(nil))
	}
	return err
}

// Read returns all objects of the file, and when they were in force last. The error is fs.ErrNotExist
// without a file, ErrStale, or names the damage.
func (f File) Read(now time.Time) (u servicetable.Update, last time.Time, err error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return u, last, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return u, last, err
	}
	if last = info.ModTime(); now.Sub(last) > MaxAge {
		return u, last, fmt.Errorf("%s: %w", f.Path, ErrStale)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSize))
	if err == nil {
		u, err = f.decode(text)
	}
	if err != nil {
		return servicetable.Update{}, last, fmt.Errorf("%s: %w", f.Path, err)
	}
	return u, last, nil
}

func (f File) decode(text []byte) (servicetable.Update, error) {
	u := servicetable.Update{All: true}
	at := bytes.LastIndex(text, []byte(trailer))
	if at < 0 {
		return u, errors.New("incomplete: there is no hash at its end")
	}
	sum := sha256.Sum256(text[:at])
	if string(bytes.TrimSpace(text[at+len(trailer):])) != hex.EncodeToString(sum[:]) {
		return u, errors.New("the hash does not match: the file was changed or damaged")
	}
	for document := range bytes.SplitSeq(text[:at], []byte(separator)) {
		if len(document) == 0 || document[0] == '#' {
			continue
		}
		if err := decodeObject(document, &u); err != nil {
			return u, err
		}
	}
	if len(u.Nodes) > 0 && u.Nodes[f.Node] == nil {
		return u, fmt.Errorf("it is of another node, not of %s", f.Node)
	}
	return u, nil
}

// decodeObject adds the object to the update, which counts only without an error.
func decodeObject(document []byte, u *servicetable.Update) error {
	var kind metav1.TypeMeta
	err := json.Unmarshal(document, &kind)
	if err != nil {
		return err
	}
	switch kind.Kind {
	case "Node":
		n := new(corev1.Node)
		err = json.Unmarshal(document, n)
		u.Add(n, false)
	case "Service":
		s := new(corev1.Service)
		err = json.Unmarshal(document, s)
		u.Add(servicetable.NewService(s), false)
	case "EndpointSlice":
		s := new(discoveryv1.EndpointSlice)
		err = json.Unmarshal(document, s)
		u.Add(servicetable.NewEndpointSlice(s), false)
	default:
		err = fmt.Errorf("unknown object of kind %q", kind.Kind)
	}
	return err
}
