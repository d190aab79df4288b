// The generate command compiles the .proto files of a directory and writes what protoc-gen-go and
// protoc-gen-go-grpc, in the versions of this module, generate from them. It is a module of its own
// so that the product's does not need a compiler of protocol buffers.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const module = "github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"

var sources = []string{"flow/flow.proto", "observer/observer.proto", "peer/peer.proto", "relay/relay.proto"}

func main() {
	from := flag.String("from", "..", "the directory of the .proto files")
	to := flag.String("to", "..", "the directory for the generated files")
	flag.Parse()
	if err := generate(*from, *to); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate(from, to string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{from}}),
		SourceInfoMode: protocompile.SourceInfoStandard, // comments
	}
	files, err := compiler.Compile(context.Background(), sources...)
	if err != nil {
		return err
	}
	parameters := []string{"module=" + module}
	for _, s := range sources {
		goPackage := module + ";hubblepb"
		if s == "peer/peer.proto" { // it has a message of the same name as observer.proto
			goPackage = module + "/peer;peerpb"
		}
		parameters = append(parameters, "M"+s+"="+goPackage)
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: sources, Parameter: proto.String(strings.Join(parameters, ","))}
	for _, f := range files {
		addFile(request, f)
	}
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	for _, generator := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := run(generator, input, to); err != nil {
			return fmt.Errorf("%s: %w", generator, err)
		}
	}
	return nil
}

// run gives a generator the request and writes the files of its response.
func run(generator string, input []byte, to string) error {
	cmd := exec.Command("go", "tool", generator)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return err
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(output, response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, f := range response.GetFile() {
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(f.GetName())), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// addFile adds a file behind its imports.
func addFile(r *pluginpb.CodeGeneratorRequest, f protoreflect.FileDescriptor) {
	if slices.ContainsFunc(r.GetProtoFile(), func(d *descriptorpb.FileDescriptorProto) bool { return d.GetName() == f.Path() }) {
		return
	}
	for i := range f.Imports().Len() {
		addFile(r, f.Imports().Get(i).FileDescriptor)
	}
	r.ProtoFile = append(r.ProtoFile, protodesc.ToFileDescriptorProto(f))
}
